"""The files of a directory, by their paths in it."""

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

from .containers import Content
from .errors import require


def content_of(path: Path) -> Content:
    """The bytes of a file, of which only what is looked at is read."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class Folder(Mapping[str, Content]):
    """Files of a directory, at any depth. Links are followed: the caches of hubs consist of them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, path: str) -> Path:
        return self.root.joinpath(*path.split("/"))

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self.path_of(path).is_file()

    def __getitem__(self, path: str) -> Content:
        if path not in self:
            raise KeyError(path)
        return content_of(self.path_of(path))

    def __iter__(self) -> Iterator[str]:
        return (path.relative_to(self.root).as_posix() for path in sorted(self.root.rglob("*")) if path.is_file())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def check_links(self, path: str, of: str) -> None:
        """Raise `CorruptDataError` if a link leads out of the directory, and not to where `of` lies as well."""
        found = self.path_of(path).resolve()
        inside = self.root.resolve() in found.parents
        require(inside or found.parent == self.path_of(of).resolve().parent, f"{path!r} is a link out of the directory")
