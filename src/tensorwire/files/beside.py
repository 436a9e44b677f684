"""The bases beside a file: tensors of other files of the same compressed directory, which the file says the paths of.

A file may come from anywhere, so a path leads only to a file that the manifest of the directory lists, as it lists the
one that is relative to it, and no link leads out of the directory.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from .._ground.copies import not_copied
from .._ground.filesystem import absolute, leads_out, resolved
from ..codec import base_mismatch
from ..errors import BaseMismatchError, CorruptDataError, ErrorContext, LimitExceededError
from ..storage.inputs import open_input
from .base import MAX_RELATIVE, BaseTensor
from .json_object import check_nbytes, load
from .names import MANIFEST_NAME, MAX_JSON_NBYTES, is_plain_relative, shown
from .reader import StoredFile

if TYPE_CHECKING:
    from ..storage.locations import Location
    from ..storage.readable import Readable
    from .base_content import Link, Place
    from .reader import StoredTensor

MAX_LINKS = 100
"""A tensor may be relative to one that is relative itself, and so on. Each is decoded by a call inside that of the one
before, and may be in a file of its own."""


def open_beside(source: Location | Readable, root: Location | None = None) -> StoredFile:
    """A safetensors file, which reads tensors of other files of its directory where its own are relative to them.

    Args:
        root: the directory, where that is still being made.
    """
    stored = StoredFile(source)
    if stored.place is not None:
        stored.beside = Beside(stored.path, stored.place, root)
    return stored


class NoFileBesideError(BaseMismatchError):
    """The file of a base cannot be used, whichever of its tensors is needed.

    Attributes:
        path: its path in the directory.
        found: what there is instead.
    """

    path = ""
    found = ""


class Beside:
    """Finds bases in other files of the directory of one file. Thread-safe."""

    __reduce_ex__ = not_copied("open files", "open the file again by its path")

    def __init__(self, path: Location, place: str, root: Location | None = None) -> None:
        """`path` is where the file is, `place` what it says of that. Nothing is opened yet."""
        self._path = path
        self._place = place
        self._root = root
        self._is_whole = root is None
        self._files: dict[str, StoredFile] = {}
        self._tensors: dict[Place, BaseTensor] = {}
        self._found: dict[Place, BaseTensor] = {}
        self._users: defaultdict[Place, set[str]] = defaultdict(set)
        self._lock = threading.RLock()

    def find(self, link: Link, *, threads: int | None, verify: bool) -> BaseTensor:
        """The base of a frame. With `verify` it has the right content, and so has all that it is relative to itself.

        Raises:
            BaseMismatchError: it is not there, or has another content.
            CorruptDataError: the path leads out of the directory, or in a circle.
            LimitExceededError: too many tensors are relative to one, or one after the other.
            FormatError, OSError: a file cannot be read.
        """
        with self._lock:
            found = self._found.get(link.tensor)
            if found is None:
                self._count(link, self._follow(link))
                found = self._found[link.tensor] = self._base(*link.base)
        if verify and (found_hash := found.hash(threads)) != link.info.base_hash:
            raise self._mismatch(link, f"the one in {str(found.stored.path)!r} has {found_hash}")
        found.find_own_base(threads=threads, verify=verify)
        return found

    def end_nbytes(self, link: Link) -> int:
        """What the tensor takes in its file to which bases lead in the end. Errors are those of `find`."""
        with self._lock:
            return self._base(*self._follow(link)).tensor.entry.nbytes

    def check(self, stored: StoredFile) -> None:
        """Raise what reading a file would, as far as headers tell: its bases are there and have the right hashes."""
        for tensor in stored.tensors.values():
            if stored.file_beside(tensor) is not None and stored.is_relative(tensor):
                link = stored.link(tensor)
                with ErrorContext(file=stored.path, tensor=tensor.name):
                    found = self.find(link, threads=None, verify=False)
                    if (recorded := found.stored.recorded_hash(found.tensor)) != link.info.base_hash:
                        raise self._mismatch(link, f"the one in {str(found.stored.path)!r} has {recorded}")

    def close(self) -> None:
        """Close the files that were opened here."""
        with self._lock:
            files, self._files = self._files, {}
            self._tensors.clear()
            self._found.clear()
        for stored in files.values():
            stored.close()

    def _base(self, file: str, name: str) -> BaseTensor:
        stored = self._files[file]
        found = self._tensors.get((file, name)) or BaseTensor(file, stored, stored.tensors[name])
        return self._tensors.setdefault((file, name), found)

    def _follow(self, link: Link) -> Place:
        """Go from base to base to a tensor that is relative to none of the directory, and return that."""
        trail = [link.tensor]
        while True:
            if link.base in trail:
                names = ", ".join(shown(file) for file, _ in trail[trail.index(link.base) :])
                raise CorruptDataError(f"expected bases that end, got a circle of {names}")
            if len(trail) > MAX_LINKS:
                raise LimitExceededError(
                    f"expected at most {MAX_LINKS} tensors, each relative to the next one, got more",
                    advice="no version writes so many: the directory is forged",
                )
            trail.append(link.base)
            stored, tensor = self._tensor(link)
            if stored.file_beside(tensor) is None or not stored.is_relative(tensor):
                return link.base
            link = stored.link(tensor)

    def _tensor(self, link: Link) -> tuple[StoredFile, StoredTensor]:
        name = link.base[1]
        stored = self._open(link)
        tensor = stored.tensors.get(name)
        if tensor is None:
            raise self._mismatch(link, f"{str(stored.path)!r} has no tensor of this name")
        nbytes = stored.layout(name)[2]
        if nbytes != link.info.uncompressed_nbytes:
            raise self._mismatch(link, f"the one in {str(stored.path)!r} has {nbytes} bytes")
        return stored, tensor

    def _count(self, link: Link, end: Place) -> None:
        """Count a tensor of the file itself: nothing but the end of its bases bounds what a few bytes can claim."""
        if link.tensor[0] != self._place:
            return
        users = self._users[end]
        users.add(link.tensor[1])
        if len(users) > MAX_RELATIVE:
            raise LimitExceededError(
                f"expected at most {MAX_RELATIVE} tensors of a file that are relative to one, got more",
                advice="no version writes so many: the file is forged",
            )

    def _open(self, link: Link) -> StoredFile:
        """The file of a base."""
        path = link.base[0]
        stored = self._files.get(path)
        if stored is not None:
            return stored
        if not is_plain_relative(path) or path == MANIFEST_NAME:
            raise CorruptDataError(f"expected the path of a file of the directory as that of a base, got {shown(path)}")
        root = self._directory(link)
        location = root.joinpath(*path.split("/"))
        if isinstance(location, Path):
            self._check_links(location, root)
        try:
            stored = StoredFile(location)
        except (FileNotFoundError, NotADirectoryError):
            raise self._no_file(link, f"there is no file {str(location)!r}") from None
        if stored.place is not None:
            stored.place, stored.beside = path, self
        self._files[path] = stored
        return stored

    def _directory(self, link: Link) -> Location:
        """The directory that has both files, by its manifest."""
        if self._root is None:
            self._root = self._find_root()
        root = self._root
        if root is None:
            raise self._no_file(link, f"{str(self._path)!r} stands in no directory with a {MANIFEST_NAME} for it")
        if self._is_whole:
            listed = _listed(root / MANIFEST_NAME)
            for path in (self._place, link.base[0]):
                if path not in listed:
                    raise self._no_file(link, f"{str(root / MANIFEST_NAME)!r} does not list {shown(path)}")
        return root

    def _find_root(self) -> Location | None:
        """What a path leads to by the names under which the file was written; None if it has others."""
        parts = self._place.split("/")
        paths: list[Location] = [self._path]
        if isinstance(self._path, Path):
            path = absolute(self._path)
            paths = [path, resolved(path)]
        for place in paths if is_plain_relative(self._place) else ():
            for part in reversed(parts):
                if place.name != part:
                    break
                place = place.parent
            else:
                if (place / MANIFEST_NAME).is_file():
                    return place
        return None

    def _check_links(self, location: Path, root: Location) -> None:
        """Raise CorruptDataError if a link leads out of the directory."""
        assert isinstance(root, Path)
        assert isinstance(self._path, Path)
        if leads_out(location, root, absolute(self._path)):
            raise CorruptDataError(
                f"expected a base in {str(root)!r}, but {str(location)!r} is a link that leads out of it",
                advice="put a copy of the file in its place",
            )

    def _no_file(self, link: Link, found: str) -> NoFileBesideError:
        """The error for a frame where the file of its base is not there."""
        mismatch = self._mismatch(link, found)
        error = NoFileBesideError(mismatch.message, advice=mismatch.advice)
        error.path, error.found = link.base[0], found
        return error

    def _mismatch(self, link: Link, found: str) -> BaseMismatchError:
        """The error for a frame whose base is not there."""
        file, name = link.base
        return base_mismatch(
            link.info,
            found,
            name=f"{shown(name)} in {shown(file)}",
            advice=f"{shown(link.tensor[0])} holds no copy of what {shown(file)} has: fetch that file and "
            f"{MANIFEST_NAME} of the same compressed directory too, as they were then, each to its place",
        )


def _listed(manifest: Location) -> frozenset[str]:
    """The paths that a manifest lists."""
    with open_input(manifest) as file:
        identity = tuple(file.identity)
    return _paths(manifest, identity)


@lru_cache(maxsize=2)
def _paths(manifest: Location, identity: tuple[int, ...]) -> frozenset[str]:
    """The same of one whose content has this identity."""
    with open_input(manifest) as file, ErrorContext(file=manifest):
        check_nbytes(file.nbytes, MAX_JSON_NBYTES, "a manifest")
        files = load(file.read(0, file.nbytes)).get("files")
        if not isinstance(files, list):
            raise CorruptDataError("expected files in the manifest")
        return frozenset(str(each.get("path")) for each in files if isinstance(each, dict))
