"""What bytes are read from and written to: a file, or what else has these methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .locations import Location


class Readable(Protocol):
    """Bytes that must not change while they are read. Reads are thread-safe.

    Attributes:
        nbytes: its size.
    """

    nbytes: int

    @property
    def path(self) -> Location:
        """Its name, for errors."""

    @property
    def identity(self) -> list[int]:
        """Numbers that differ once other bytes are there. The size comes first."""

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out` from `offset` on; TruncatedDataError at the end."""

    def read(self, offset: int, nbytes: int) -> bytes:
        """At most `nbytes` bytes from `offset` on; fewer at the end."""

    def read_ahead(self, offset: int, nbytes: int) -> None:
        """Ask for bytes that will be read soon. One call follows another for each range."""

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Ranges [start, stop) will be read, about in the order of their offsets: what is far away is fetched ahead."""

    def check_size(self) -> None:
        """Raise an error if there is more or less than `nbytes`."""

    def check_unchanged(self) -> None:
        """Raise an error if the bytes may have changed since they were opened."""

    def close(self) -> None: ...


class Writable(Protocol):
    """Takes bytes in any order."""

    def write(self, offset: int, data: memoryview | bytes) -> None: ...

    def truncate(self, nbytes: int) -> None:
        """Cut off what is behind `nbytes`, or fill up with zeros."""
