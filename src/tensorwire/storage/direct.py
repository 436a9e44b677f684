"""Reads past the page cache, for callers that read more than it holds over and over."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from .._ground.copies import not_copied
from .._ground.filesystem import naming
from ..errors import TruncatedDataError
from .local import Descriptor

if TYPE_CHECKING:
    from .local import InputFile

_PAGE = 4096
"""Offsets, sizes and memory of direct reads are multiples of this, which suits every disk."""

READ_NBYTES = 32 << 20
"""The most that one call reads: an interrupt waits for its end."""


class DirectFile:
    """An open file once more: it stays open when the other is closed. Reads are thread-safe.

    Where the file system has no direct reads, those of the page cache are used, and their pages are given back.

    Attributes:
        file: the same, read by the page cache.
    """

    __reduce_ex__ = not_copied("an open file", "make one of a file that was opened again by its path")

    def __init__(self, file: InputFile) -> None:
        self.file = file.duplicate()
        self._direct = _open_directly(self.file.descriptor.number)

    def room(self, offset: int, nbytes: int) -> int:
        """The memory that `read` needs for these bytes: the pages that hold them."""
        first = offset // _PAGE * _PAGE
        return -(-(offset + nbytes - first) // _PAGE) * _PAGE

    def within(self, offset: int, nbytes: int, memory: memoryview) -> memoryview:
        """Where `read` has put these bytes."""
        skip = offset % _PAGE
        return memory[skip : skip + nbytes]

    def read(self, offset: int, nbytes: int, memory: memoryview, start: int = 0, stop: int | None = None) -> None:
        """Read the pages that hold these bytes into memory that begins at a page; or bytes [start, stop) of that
        memory alone, whole pages too.

        Raises:
            TruncatedDataError: the file ends before.
            OSError: reading fails.
        """
        first, stop = offset - offset % _PAGE, self.room(offset, nbytes) if stop is None else stop
        needed = min(stop, offset % _PAGE + nbytes)
        with naming(self.file.path):
            while start < needed:
                count = self._read_some(memory[start : min(stop, start + READ_NBYTES)], first + start)
                start += count
                if count == 0 or (start < needed and start % _PAGE):  # from there a direct read cannot go on
                    raise TruncatedDataError(
                        f"expected {nbytes} bytes from {offset} on, got {max(0, start - offset % _PAGE)}",
                        file=self.file.path,
                        byte=first + start,
                    )

    def _read_some(self, out: memoryview, position: int) -> int:
        direct = self._direct
        if direct is not None:
            try:
                return os.preadv(direct.number, [out], position)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = None  # a file system that takes the flag, but not the read
        number = self.file.descriptor.number
        count = os.preadv(number, [out], position)
        os.posix_fadvise(number, position, count, os.POSIX_FADV_DONTNEED)
        return count


def _open_directly(number: int) -> Descriptor | None:
    """The same file, even if another one has its name by now."""
    with suppress(OSError):
        return Descriptor(os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT))
    return None
