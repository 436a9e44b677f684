"""The files of a directory, by their paths in it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from .containers import Content
from .errors import TruncatedDataError, require


class FileContent:
    """The bytes of a file, of which only what is looked at is read. It is open only then: some systems let a program
    open 256 files. One that becomes shorter meanwhile is an error, where a memory map would end the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._nbytes = path.stat().st_size

    def __len__(self) -> int:
        return self._nbytes

    def __getitem__(self, place: slice) -> bytes:
        start, stop, _ = place.indices(self._nbytes)
        with self._path.open("rb") as file:
            file.seek(start)
            data = file.read(max(stop - start, 0))
        if len(data) < stop - start:
            raise TruncatedDataError(f"{str(self._path)!r} has become shorter while it was read")
        return data


class Folder(Mapping[str, Content]):
    """Files of a directory, at any depth. Links to files are followed: the caches of hubs consist of them. Links to
    directories may lead anywhere, and are refused."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, path: str) -> Path:
        return self.root.joinpath(*path.split("/"))

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self.path_of(path).is_file()

    def __getitem__(self, path: str) -> Content:
        if path not in self:
            raise KeyError(path)
        for above in list(self.path_of(path).relative_to(self.root).parents)[:-1]:
            if (self.root / above).is_symlink():
                raise ValueError(f"{str(self.root / above)!r} is a link to a directory: put a copy in its place")
        return FileContent(self.path_of(path))

    def __iter__(self) -> Iterator[str]:
        return (path.relative_to(self.root).as_posix() for path in sorted(self.root.rglob("*")) if path.is_file())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def check_links(self, path: str, of: str) -> None:
        """Raise `CorruptDataError` if a link leads out of the directory, and not to where `of` lies as well."""
        found = self.path_of(path).resolve()
        inside = self.root.resolve() in found.parents
        require(inside or found.parent == self.path_of(of).resolve().parent, f"{path!r} is a link out of the directory")
