"""What cannot seek: standard input and output, and a temporary file behind them."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from .._ground.copies import not_copied
from .._ground.filesystem import naming
from ..errors import CorruptDataError, TruncatedDataError
from .local import Descriptor, check_identity, identity, write_at

if TYPE_CHECKING:
    from .readable import Appendable

_CHUNK_NBYTES = 1 << 20
_PIPE_NBYTES = 1 << 20


class SpoolFile:
    """A temporary file without a name, as a `Writable`: it is gone when it is closed, or the process is.

    Attributes:
        path: the directory that it is in, for errors.
        nbytes: end of what has been written.
    """

    __reduce_ex__ = not_copied("a temporary file without a name", "write its bytes into another one")

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="tensorwire-", buffering=0)  # noqa: SIM115 - `close` closes it
        self._fd = self._file.fileno()
        self.path = Path(tempfile.gettempdir())
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

    def copy_to(self, target: Appendable, nbytes: int) -> None:
        """Write the first `nbytes` bytes to `target`."""
        buffer = memoryview(bytearray(_CHUNK_NBYTES))
        for start in range(0, nbytes, _CHUNK_NBYTES):
            part = buffer[: min(_CHUNK_NBYTES, nbytes - start)]
            self.read_into(start, part)
            target.write(start, part)

    def close(self) -> None:
        self._file.close()


def stream_path(stream: IO[bytes]) -> Path:
    """What errors and reports call a stream."""
    return Path(str(stream.name).strip("<>"))


class InputStream:
    """What cannot seek, as a `Readable`. What a read leaves out is kept in a temporary file, for a later one.

    So reads in order need no temporary file. Only what the first read gives may be read again.
    """

    __reduce_ex__ = not_copied("an open stream, whose bytes come once", "read it in one place")

    in_order = True

    def __init__(self, stream: IO[bytes]) -> None:
        """`stream` has a file descriptor, and nothing of it has been read."""
        self.path = stream_path(stream)
        self.nbytes = sys.maxsize
        self._position = 0
        self._first = b""
        self._spool: SpoolFile | None = None
        self._descriptor: Descriptor | None = Descriptor(os.dup(stream.fileno()))
        number = self._descriptor.number
        self.identity = identity(number)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._readable = select.poll()
        for fd in (number, self._wake):
            self._readable.register(fd, select.POLLIN)
        with suppress(OSError):  # not a pipe, or not allowed
            fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, _PIPE_NBYTES)

    def read_into(self, offset: int, out: memoryview) -> None:
        begin = self._first[offset : offset + len(out)]
        out[: len(begin)] = begin
        offset, out = offset + len(begin), out[len(begin) :]
        if not len(out):
            return
        if offset < self._position:
            assert self._spool is not None, "a byte is read once"
            self._spool.read_into(offset, out)
            return
        self._skip(offset - self._position)
        done = self._receive(out)
        self._position += done
        if done < len(out):
            raise TruncatedDataError(
                f"expected {len(out)} bytes from {offset} on, got {done}", file=self.path, byte=offset + done
            )

    def read(self, offset: int, nbytes: int) -> bytes:
        nbytes = max(0, min(nbytes, self.nbytes - offset))
        begin = self._first[offset : offset + nbytes]
        return begin + self._read(offset + len(begin), nbytes - len(begin))

    def _read(self, offset: int, nbytes: int) -> bytes:
        if not nbytes:
            return b""
        if offset < self._position:
            data = bytearray(nbytes)
            self.read_into(offset, memoryview(data))
            return bytes(data)
        self._skip(offset - self._position)
        data = bytearray()
        while len(data) < nbytes:  # not all at once: somebody may claim a size that he does not have
            part = bytearray(min(_CHUNK_NBYTES, nbytes - len(data)))
            count = self._receive(memoryview(part))
            data += part[:count]
            self._position += count
            if count < len(part):
                break
        if offset == 0:
            self._first = bytes(data)
        return bytes(data)

    def read_ahead(self, offset: int, nbytes: int) -> None:
        """A pipe holds what comes next."""

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Likewise."""

    def spool(self, file: SpoolFile, nbytes: int) -> None:
        """Append to `file`, which holds all that has been read, until it has `nbytes` bytes or the stream ends."""
        buffer = memoryview(bytearray(max(0, min(_CHUNK_NBYTES, nbytes - file.nbytes))))
        while file.nbytes < nbytes and (count := self._receive(buffer[: nbytes - file.nbytes])):
            file.write(file.nbytes, buffer[:count])

    def _skip(self, nbytes: int) -> None:
        """Put the next bytes into the temporary file, at their own offset."""
        if nbytes and self._spool is None:
            self._spool = SpoolFile()
        buffer = memoryview(bytearray(min(nbytes, _CHUNK_NBYTES)))
        while nbytes and self._spool is not None:
            count = self._receive(buffer[: min(nbytes, len(buffer))])
            if not count:
                raise TruncatedDataError(
                    f"expected {self.nbytes} bytes, got {self._position}", file=self.path, byte=self._position
                )
            self._spool.write(self._position, buffer[:count])
            self._position += count
            nbytes -= count

    def _receive(self, out: memoryview) -> int:
        """Fill `out`; what is returned is less than its size at the end of the stream."""
        done = 0
        descriptor = self._descriptor
        if descriptor is None:
            raise ValueError(f"{self.path} is closed")
        with naming(self.path):
            while done < len(out):
                if self._wake in dict(self._readable.poll()):
                    raise InterruptedError("the read was stopped")
                count = os.readv(descriptor.number, [out[done:]])
                if not count:
                    break
                done += count
        return done

    def stop(self) -> None:
        os.eventfd_write(self._wake, 1)

    def check_unchanged(self) -> None:
        """Raise CorruptDataError if there is more than `nbytes`; OSError for a file that was written to meanwhile."""
        if self._descriptor is not None and stat.S_ISREG(os.fstat(self._descriptor.number).st_mode):
            check_identity(self._descriptor.number, self.identity, self.path)
        self.check_size()

    def check_size(self) -> None:
        if self._receive(memoryview(bytearray(1))):
            raise CorruptDataError(f"expected {self.nbytes} bytes, got more", file=self.path, byte=self.nbytes)

    def close(self) -> None:
        self._descriptor = None
        if self._spool is not None:
            self._spool.close()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1


class OutputStream:
    """What cannot seek, as an `Appendable`."""

    __reduce_ex__ = not_copied("an open stream", "write it in one place")

    def __init__(self, stream: IO[bytes]) -> None:
        """`stream` has a file descriptor, and nothing waits in its buffer."""
        self._position = 0
        self._fd = os.dup(stream.fileno())
        self._writable = select.poll()
        self._writable.register(self._fd, select.POLLOUT)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        assert offset == self._position
        view = memoryview(data)
        done = 0
        while done < len(view):
            self._writable.poll()  # a process that shares it may have made it one that does not wait
            done += os.write(self._fd, view[done:])
        self._position += len(view)

    def close(self) -> None:
        os.close(self._fd)
