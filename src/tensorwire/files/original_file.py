"""The original of a stored file as a file object, which is decoded as far as it is read."""

from __future__ import annotations

import io
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from .._ground.copies import not_copied

if TYPE_CHECKING:
    from .original_view import OriginalReader


class OriginalFile(io.RawIOBase):
    """For one thread at a time. Blocks of compressed tensors are checked as they are read, other tensors if they are
    read at once. The SHA-256 of the whole file is not.

    Attributes:
        error: what the last read raised. A caller in C++ may have made another error of it.
    """

    __reduce_ex__ = not_copied("an open file", "open it again by its path")

    def __init__(self, reader: OriginalReader) -> None:
        """Raises CorruptDataError if a tensor is not the one that the original has in its place."""
        super().__init__()
        self.error: Exception | None = None
        self._reader = reader
        for index in range(len(reader.sizes)):
            reader.check_layout(index)
        entries = enumerate(reader.header.entries)
        parts: list[tuple[int, int, int | bytes, int]] = [
            *((gap.position, 0, gap.data, len(gap.data)) for gap in reader.outline.gaps),
            *((entry.start, 1, index, entry.nbytes) for index, entry in entries),
        ]
        parts.sort(key=lambda part: part[:2])  # what stands before a tensor, then the tensor
        self._parts: list[int | bytes] = []
        self._starts = [0]
        for _, _, part, nbytes in parts:
            self._parts.append(part)
            self._starts.append(self._starts[-1] + nbytes)
        self._nbytes = self._starts.pop()
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(
            0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._nbytes}[whence]
        )
        return self._position

    def readinto(self, buffer: Any) -> int:
        out = memoryview(buffer).cast("B")
        out = out[: max(0, self._nbytes - self._position)]
        done = 0
        try:
            while done < len(out):
                done += self._read_part(self._position + done, out[done:])
        except Exception as error:
            self.error = error
            raise
        self._position += done
        return done

    def _read_part(self, position: int, out: memoryview) -> int:
        """What one part has from there on."""
        number = bisect_right(self._starts, position) - 1
        part, start = self._parts[number], position - self._starts[number]
        if isinstance(part, int):
            count = min(len(out), self._reader.sizes[part] - start)
            self._reader.reread(part, start, out[:count])
            if count == self._reader.sizes[part]:
                self._reader.check_plain(part, out[:count])
        else:
            count = min(len(out), len(part) - start)
            out[:count] = part[start : start + count]
        return count

    def close(self) -> None:
        self._reader.stored.close()
        super().close()
