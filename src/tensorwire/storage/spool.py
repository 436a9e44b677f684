"""A temporary file without a name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .._ground.copies import not_copied
from .._ground.filesystem import naming
from .local import write_at


class SpoolFile:
    """A temporary file without a name, as a `Writable`: it is gone when it is closed, or the process is.

    Attributes:
        path: the directory that it is in, for errors.
        nbytes: end of what has been written.
    """

    __reduce_ex__ = not_copied("a temporary file without a name", "write its bytes into another one")

    def __init__(self, directory: Path | None = None) -> None:
        """`directory`: by default that for temporary files, which may lie in memory."""
        self.path = directory or Path(tempfile.gettempdir())
        with naming(self.path):
            self._file = tempfile.TemporaryFile(  # noqa: SIM115 - `close` closes it
                prefix="tensorwire-", buffering=0, dir=self.path
            )
        self._fd = self._file.fileno()
        self.nbytes = 0

    @property
    def location(self) -> Path:
        """A path by which this process can open the file again, as long as it is not closed."""
        return Path(f"/proc/self/fd/{self._fd}")

    def write(self, offset: int, data: memoryview | bytes) -> None:
        write_at(self._fd, offset, memoryview(data), self.path)
        self.nbytes = max(self.nbytes, offset + len(data))

    def truncate(self, nbytes: int) -> None:
        with naming(self.path):
            os.ftruncate(self._fd, nbytes)
        self.nbytes = nbytes

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out`, which must have been written, from `offset` on."""
        with naming(self.path):
            done = 0
            while done < len(out):
                count = os.preadv(self._fd, [out[done:]], offset + done)
                assert count, "the end of a temporary file"
                done += count

    def read(self, offset: int, nbytes: int) -> bytes:
        """At most `nbytes` bytes from `offset` on; fewer at the end of what was written."""
        data = bytearray(max(0, min(nbytes, self.nbytes - offset)))
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def close(self) -> None:
        self._file.close()


def is_spooled(place: object) -> bool:
    """Whether this is the `location` of such a file, which errors had better not name."""
    return str(place).startswith("/proc/self/fd/")
