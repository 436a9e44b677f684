"""Where the blocks of a frame are: in memory, or in a file for weights that are larger than the memory.

The blocks of a product's weight are read into memory of two of the largest frames, those that come next while those at
hand are in use. They are read past the page cache: it would keep what was used last, which is the last to be used
again, and drop all the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..._ground.allocation import new_buffer
from ...storage.direct import READ_NBYTES

if TYPE_CHECKING:
    from ...storage.ahead import Ahead
    from ...storage.direct import DirectFile


class MemoryBlocks:
    """Blocks in memory, which may be the map of a file."""

    in_memory = True

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def part(self, lo: int, hi: int) -> memoryview:
        """Bytes [lo, hi) of the blocks."""
        return self.data[lo:hi]


class FileBlocks:
    """Blocks in a file, which may be closed or replaced by its other users, but not written to."""

    in_memory = False

    def __init__(self, file: DirectFile, start: int, nbytes: int, reads: Ahead[FileBlocks]) -> None:
        """
        Args:
            start: where they begin in the file.
            reads: what reads them before they are used.
        """
        self._file = file
        self._start = start
        self._nbytes = nbytes
        self._reads = reads

    @property
    def room_nbytes(self) -> int:
        """The memory that `read` needs."""
        return self._file.room(self._start, self._nbytes)

    def read(self, memory: memoryview, start: int = 0, stop: int | None = None) -> None:
        """All blocks into memory, which begins at a page; or bytes [start, stop) of that memory, whole pages."""
        self._file.read(self._start, self._nbytes, memory, start, stop)

    def part(self, lo: int, hi: int) -> memoryview:
        """Bytes [lo, hi) of the blocks; negative places are those of the header before them."""
        data = new_buffer(hi - lo)
        self._file.file.read_into(self._start + lo, data)
        return data

    @contextmanager
    def loaded(self) -> Iterator[MemoryBlocks]:
        """All blocks in memory, for the length of a ``with`` block."""
        lease = self._reads.take(self)
        if lease is None:
            memory = new_buffer(self.room_nbytes)
            self.read(memory)
            yield self._within(memory)
        else:
            with lease as memory:
                yield self._within(memory)

    def _within(self, memory: memoryview) -> MemoryBlocks:
        return MemoryBlocks(self._file.within(self._start, self._nbytes, memory))


class Reads:
    """The work of reading blocks ahead."""

    def nbytes(self, blocks: FileBlocks) -> int:
        return blocks.room_nbytes

    def step(self, blocks: FileBlocks) -> int:
        return READ_NBYTES

    def make(self, blocks: FileBlocks, memory: memoryview, start: int, stop: int, ahead: bool) -> None:
        blocks.read(memory, start, stop)
