"""The folder that versions are published to: a directory, or a URL of fsspec.

A version exists once its index does, which is written last and replaces nothing. The file "latest" is a hint: what
stands is told by the indexes alone.
"""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .._ground.new_file import temporary_files
from ..checkpoint.directory.config_and_index import read_index
from ..codec import content_hash
from ..errors import CorruptDataError, ErrorContext, FormatError, TruncatedDataError
from ..files.reader import StoredFile
from ..storage.inputs import open_input, read_file
from ..storage.upload import put_bytes, remove_if_there
from .versions import INDEX_NAME, Version, folder_name, hinted_number, number_of, parse_index

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..storage.locations import Location
    from .small_files import SmallFile

MAX_LINKS = 10_000
"""Versions from an anchor to the next one, at most: their indexes are in memory at once."""

_HINT, _MAX_HINT_NBYTES = "latest", 4096


class Store:
    """Nothing is remembered between calls: others publish and delete meanwhile.

    Attributes:
        place: where it is.
    """

    def __init__(self, place: Location) -> None:
        self.place = place

    def numbers(self) -> list[int]:
        """The versions that have folders, newest first."""
        with suppress(FileNotFoundError):
            found = (number_of(entry.name) for entry in self.place.iterdir())
            return sorted((number for number in found if number is not None), reverse=True)
        return []

    def read(self, number: int) -> Version | None:
        """A version; None if it does not exist, or not yet.

        Raises:
            CorruptDataError: its index is damaged, or not ours.
            LimitExceededError: it is larger than an index may be.
        """
        place = self._at(number, INDEX_NAME)
        with ErrorContext(file=place):
            try:
                return parse_index(read_index(place), number)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def versions(self) -> Iterator[tuple[Version, float | None]]:
        """All versions, newest first, and when each was published, as the store tells: seconds since 1970.

        Raises:
            CorruptDataError, LimitExceededError: as `read`.
        """
        for number in self.numbers():
            version = self.read(number)
            if version is not None:
                yield version, self._at(number, INDEX_NAME).stat().st_mtime

    def newest(self, *also: int) -> Version | None:
        """The newest version, also if it is one of these or the hinted one and a late listing does not have it yet."""
        hinted = None
        try:
            hinted = hinted_number(read_file(self._at(_HINT), _MAX_HINT_NBYTES))
        except TimeoutError:  # the listing would wait as long
            raise
        except OSError:  # it is missing, or far too large
            pass
        numbers = {*self.numbers(), *also} | ({hinted} if hinted is not None else set())
        found = (self.read(number) for number in sorted(numbers, reverse=True))
        return next((version for version in found if version is not None), None)

    def has_state(self, state: str) -> bool:
        """Whether a version has these tensors; indexes that cannot be read say nothing."""
        for number in self.numbers():
            with suppress(FormatError):
                version = self.read(number)
                if version is not None and version.state == state:
                    return True
        return False

    def links(self, goal: Version, state: str | None) -> list[Version]:
        """What leads to a version: from the tensors of this state, or else from an anchor.

        Raises:
            FileNotFoundError: a version that others are relative to is missing.
            CorruptDataError: another version has its number, or there are more of them than a publisher makes.
        """
        links = [goal]
        while links[0].base is not None and links[0].base_state != state:
            if len(links) == MAX_LINKS:
                raise CorruptDataError(
                    f"expected an anchor among the {MAX_LINKS:,} versions up to {goal.number:06d}, got none",
                    file=self._at(goal.number),
                    advice="publish an anchor",
                )
            version = self.read(links[0].base)
            if version is None:
                text = f"version {links[0].number:06d} is relative to this one, which is missing; publish an anchor"
                raise FileNotFoundError(errno.ENOENT, text, str(self._at(links[0].base)))
            if (version.state, version.lineage) != (links[0].base_state, links[0].lineage):
                raise CorruptDataError(
                    f"expected version {version.number:06d} of lineage {links[0].lineage} with state "
                    f"{links[0].base_state}, got one of lineage {version.lineage} with {version.state}",
                    file=self._at(version.number),
                    advice="another publisher has written it: publish an anchor",
                )
            links.insert(0, version)
        return links

    def open(self, version: Version, file: str) -> StoredFile:
        """A file of a version.

        Raises:
            TruncatedDataError: it is shorter than it was.
            FormatError, OSError: it is damaged, or cannot be read.
        """
        place = self._at(version.number, file)
        readable = open_input(place)
        if readable.nbytes != version.files[file]:
            readable.close()
            raise TruncatedDataError(
                f"expected a file of {version.files[file]} bytes, got {readable.nbytes}", file=place
            )
        return StoredFile(readable)

    def read_small(self, small: SmallFile) -> bytes:
        """A small file.

        Raises:
            CorruptDataError: it is not what the index tells of.
            OSError: it cannot be read.
        """
        place = self._at(small.number, small.home)
        with open_input(place) as file:
            data = file.read(0, min(file.nbytes, small.nbytes + 1))
        if len(data) != small.nbytes or (found := content_hash(data)) != small.hash:
            text = f"expected {small.nbytes} bytes with hash {small.hash}"
            text += f", got hash {found}" if len(data) == small.nbytes else f", got {len(data)}"
            raise CorruptDataError(text, file=place, advice="publish an anchor with these files")
        return data

    def is_whole(self, version: Version) -> bool:
        """Whether its files are there, as large as they were."""
        try:
            tensors = (self._at(version.number, file).stat().st_size == size for file, size in version.files.items())
            small = (self._at(each.number, each.home).stat().st_size == each.nbytes for each in version.small.values())
            return all(tensors) and all(small)
        except FileNotFoundError:
            return False

    def put_file(self, number: int, file: str, data: bytes) -> None:
        """Put a file of a version whose index does not stand yet."""
        self._put(number, file, data)
        if (found := self._at(number, file).stat().st_size) != len(data):
            text = f"expected a file of {len(data)} bytes after writing it, got {found}; publish again"
            raise OSError(errno.EIO, text, str(self._at(number, file)))

    def put_index(self, version: Version, data: bytes) -> None:
        """Make a version exist. `data` is its index.

        Raises:
            FileExistsError: another publisher has made the one of this number.
            OSError: it may exist or not.
        """
        try:
            self._put(version.number, INDEX_NAME, data, exclusive=True)
        except OSError as error:
            # The error may have come after the bytes had gone.
            try:
                found: bytes | None = read_index(self._at(version.number, INDEX_NAME))
            except (OSError, FormatError):
                found = None
            if found == data:
                return
            if found is not None:
                raise other_publisher(self._at(version.number)) from error
            raise

    def put_hint(self, version: Version) -> None:
        self.put_note(_HINT, f"{version.lineage}/{folder_name(version.number)}".encode())

    def put_note(self, name: str, data: bytes) -> None:
        """Put a small file beside the versions, in the place of the one before."""
        if isinstance(self.place, Path):
            self.place.mkdir(parents=True, exist_ok=True)
        put_bytes(data, self.place / name)

    def remove_files(self, number: int, files: list[str]) -> None:
        """Remove files of a version whose index never stood."""
        self._check_own(self._at(number))
        for file in files:
            remove_if_there(self._at(number, file))
        folder = self._at(number)
        if isinstance(folder, Path):
            with suppress(OSError):  # another publisher's files are there
                folder.rmdir()

    def remove(self, number: int) -> None:
        """Remove a version with all that its folder holds, the index first: without it no follower begins with it.

        Raises:
            OSError: it cannot be removed. The folder is a link, say, which stays with what it leads to.
        """
        folder = self._at(number)
        self._check_own(folder)
        with suppress(NotADirectoryError):
            remove_if_there(self._at(number, INDEX_NAME))
        with suppress(FileNotFoundError):
            if isinstance(folder, Path):
                shutil.rmtree(folder)
            else:
                for place in list(folder.files()):
                    remove_if_there(place)

    def remove_temporary(self, known: Collection[str]) -> set[str]:
        """Remove those of these temporary files that still are beside the versions; return the names of all others.

        No write of such a file takes as long as from one anchor of a publisher to its next one: its writer is dead.
        """
        if not isinstance(self.place, Path):
            return set()
        found = temporary_files(self.place)
        for name in found.intersection(known):
            remove_if_there(self.place / name)
        return found.difference(known)

    def _put(self, number: int, file: str, data: bytes, *, exclusive: bool = False) -> None:
        """Put a file into the folder of a version, which is made where it is missing."""
        folder = self._at(number)
        while True:
            if isinstance(folder, Path):
                self._check_own(folder)
                folder.mkdir(parents=True, exist_ok=True)
            try:
                put_bytes(data, folder / file, exclusive=exclusive)
            except FileNotFoundError:
                # Another rank that fails removes the folder as long as it is empty.
                if not isinstance(folder, Path) or folder.exists():
                    raise
            else:
                return

    @staticmethod
    def _check_own(folder: Location) -> None:
        """Raise OSError for a folder that is a link: what it leads to may be another's."""
        if isinstance(folder, Path) and folder.is_symlink():
            text = "is a link, so nothing is written or removed behind it; move the folder here, or remove the link"
            raise OSError(errno.ELOOP, text, str(folder))

    def _at(self, part: int | str, *parts: str) -> Location:
        """A place in it, of which nothing is known."""
        return self.place.joinpath(folder_name(part) if isinstance(part, int) else part, *parts)


def other_publisher(place: Location) -> FileExistsError:
    text = "another publisher writes to this store; end one of the two, and make a new publisher to go on"
    return FileExistsError(errno.EEXIST, text, str(place))
