"""Frames whose blocks stay in a file, for weights that are larger than the memory.

The blocks of a product's weight are read into memory of two of the largest frames, those that come next while those at
hand are in use. They are read past the page cache: it would keep what was used last, which is the last to be used
again, and drop all the rest.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from ...codec import new_buffer
from ...codec.arrays import byte_view
from ...storage.direct import READ_NBYTES
from .open_frame import OpenFrame, attach, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ...storage.ahead import Ahead
    from ...storage.direct import DirectFile
    from .open_frame import Origin


class FileFrame(OpenFrame):
    """A frame with its header in memory and its blocks in a file, which may be closed or replaced by its other users,
    but not written to.
    """

    _in_memory = False
    _file: DirectFile

    def __init__(self, frame: Tensor, origin: Origin, file: DirectFile, start: int, reads: Ahead[FileFrame]) -> None:
        """
        Args:
            frame: the file's memory map, from the frame's first byte to its last. Only the header is read through it:
                who touches a page that the file has lost is killed.
            start: where the frame begins in the file.
        """
        super().__init__(frame, origin, file)
        self._start = start + self.info.header_nbytes
        self._reads = reads

    @property
    def in_memory_nbytes(self) -> int:
        return self.info.header_nbytes

    def in_memory(self, frame: Tensor) -> Tensor:
        whole = torch.empty(self.info.frame_nbytes, dtype=torch.uint8, device="cpu")  # whatever the default is
        with self._reading():
            self._file.read_into(self._start - self.info.header_nbytes, byte_view(whole, writable=True).data)
            attach(whole, self.origin._replace(verify=False))
            if self.origin.verify:
                opened(whole).check()
        return whole

    @contextmanager
    def loaded(self) -> Iterator[OpenFrame]:
        with self._reading():
            lease = self._reads.take(self)
            if lease is None:
                memory = new_buffer(self.room_nbytes)
                self.read(memory)
                yield _Loaded(self, memory)
            else:
                with lease as memory:
                    yield _Loaded(self, memory)

    @property
    def room_nbytes(self) -> int:
        """The memory that `read` needs."""
        return self._file.room(self._start, self.info.data_nbytes)

    def read(self, memory: memoryview, start: int = 0, stop: int | None = None) -> None:
        """All blocks into memory, which begins at a page; or bytes [start, stop) of that memory, whole pages."""
        with self._context():
            self._file.read(self._start, self.info.data_nbytes, memory, start, stop)

    def blocks_in(self, memory: memoryview) -> memoryview:
        """Where `read` has put the blocks."""
        return self._file.within(self._start, self.info.data_nbytes, memory)

    def decode(self, first: int, out: Tensor, threads: int | None = None) -> None:
        if out.numel() * out.element_size() == self.info.uncompressed_nbytes:
            with self.loaded() as frame:
                frame.decode(first, out, threads)
        else:
            super().decode(first, out, threads)

    def linear(self, inputs: Tensor) -> Tensor:
        with self.loaded() as frame:
            return frame.linear(inputs)

    def check(self) -> None:
        with self.loaded() as frame:
            frame.check()

    def _blocks(self, lo: int, hi: int) -> memoryview:
        data = new_buffer(hi - lo)
        self._file.read_into(self._start + lo, data)
        return data


class _Loaded(OpenFrame):
    """A FileFrame for as long as its blocks are in memory."""

    def __init__(self, frame: FileFrame, memory: memoryview) -> None:
        vars(self).update(vars(frame))
        self._data = frame.blocks_in(memory)


class Reads:
    """The work of reading frames ahead."""

    def nbytes(self, frame: FileFrame) -> int:
        return frame.room_nbytes

    def step(self, frame: FileFrame) -> int:
        return READ_NBYTES

    def make(self, frame: FileFrame, memory: memoryview, start: int, stop: int, ahead: bool) -> None:
        frame.read(memory, start, stop)
