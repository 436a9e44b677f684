"""Files by descriptor: positioned, whole, and with the file's name in every OSError."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .._ground.allocation import MAP_NORESERVE
from .._ground.copies import not_copied, twin_of
from .._ground.filesystem import close, following, naming
from ..errors import TruncatedDataError
from .access import PRIVATE, give_access

if TYPE_CHECKING:
    from .access import Access

_FLUSH_NBYTES = 64 << 20
_WRITE_NBYTES = 1 << 20
"""The most bytes of one call. More may take several times as long per byte while a flush is under way (ext4, Linux
6.18)."""


class Descriptor:
    """Closed with the last reference to it: its number is not given to another file while a thread reads."""

    __slots__ = ("number",)
    __reduce_ex__ = not_copied("the number of an open file", "open the file again by its path")

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        close(self.number)


def identity_of(file: int | Path) -> list[int]:
    """What changes when a file does, which a path or a descriptor leads to: its size, times and inode. Machines that
    share a file system know it by different devices."""
    status = os.stat(file)  # noqa: PTH116 - or a descriptor
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def check_identity(number: int, expected: list[int], path: Path) -> None:
    """Raise OSError if a file was written to since it had this identity. Its links and permissions may change."""
    status = os.fstat(number)
    if [status.st_size, status.st_mtime_ns] != expected[:2]:
        raise OSError(errno.EBUSY, "the file changed while it was read", str(path))


def write_at(number: int, offset: int, data: memoryview, path: Path) -> None:
    """Write all of `data` to a descriptor."""
    with naming(path):
        done = 0
        while done < len(data):
            done += os.pwrite(number, data[done : done + _WRITE_NBYTES], offset + done)


class InputFile:
    """A regular file as a `Readable`. `path` is as given; `nbytes` and `identity` are those of when it was opened."""

    __reduce_ex__ = not_copied("an open file", "open it again by its path")

    def __init__(self, path: Path, number: int | None = None) -> None:
        """`number`: the descriptor of the file where it is open already; it is closed with this."""
        self.path = path
        if number is None:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            # Without O_NONBLOCK a FIFO would wait for a writer before it can be refused.
            with following(path):
                number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        descriptor = Descriptor(number)
        if not stat.S_ISREG(os.fstat(descriptor.number).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        self._descriptor: Descriptor | None = descriptor
        self.identity = identity_of(descriptor.number)
        self.nbytes = self.identity[0]

    def duplicate(self) -> InputFile:
        """The same open file once more, which is closed on its own."""
        return twin_of(self)

    @property
    def descriptor(self) -> Descriptor:
        descriptor = self._descriptor
        if descriptor is None:
            raise ValueError(f"{self.path} is closed: read from it inside its with statement")
        return descriptor

    def read_into(self, offset: int, out: memoryview) -> None:
        descriptor = self.descriptor
        done = 0
        with naming(self.path):
            while done < len(out):
                count = os.preadv(descriptor.number, [out[done:]], offset + done)
                if count == 0:
                    raise TruncatedDataError(
                        f"expected {len(out)} bytes from {offset} on, got {done}", file=self.path, byte=offset + done
                    )
                done += count

    def read(self, offset: int, nbytes: int) -> bytes:
        nbytes = max(0, min(nbytes, self.nbytes - offset))
        data = bytearray(nbytes)
        if nbytes:
            self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_ahead(self, offset: int, nbytes: int) -> None:
        """They come into the page cache meanwhile."""
        with suppress(OSError):  # a file system that cannot
            os.posix_fadvise(self.descriptor.number, offset, nbytes, os.POSIX_FADV_WILLNEED)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """The system reads ahead by itself."""

    @cached_property
    def map(self) -> mmap.mmap:
        """The file as memory. A page is read when touched; to touch one that the file has lost kills the process."""
        flags = mmap.MAP_PRIVATE | MAP_NORESERVE  # writable, as torch wants it, without a claim on memory
        with naming(self.path):
            return mmap.mmap(self.descriptor.number, self.nbytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    def check_size(self) -> None:
        """Raise OSError if the file got longer or shorter since it was opened."""
        nbytes = os.fstat(self.descriptor.number).st_size
        if nbytes != self.nbytes:
            change = "longer" if nbytes > self.nbytes else "shorter"
            message = f"the file got {change} while it was read: expected {self.nbytes} bytes, got {nbytes}"
            raise OSError(errno.EBUSY, message, str(self.path))

    def check_unchanged(self) -> None:
        check_identity(self.descriptor.number, self.identity, self.path)

    def close(self) -> None:
        """A read that another thread is in ends as it would have."""
        self._descriptor = None

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class OutputFile:
    """A new file as a `Writable`, for one thread at a time.

    What is written goes to the disk in the background, so that little is left for `sync` to wait for. `nbytes` is the
    end of what has been written.
    """

    __reduce_ex__ = not_copied("a file that it writes", "write it in one place")

    def __init__(self, path: Path, access: Access | None = None) -> None:
        """`access` is what `sync` gives the file, which is its owner's alone until then; by default a new file's."""
        self.nbytes = 0
        self._path = path
        self._access = access
        self._flusher: threading.Thread | None = None
        self._flush_error: OSError | None = None
        self._num_unflushed = 0
        path.unlink(missing_ok=True)  # an earlier run's, or a link that was put there
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o666 if access is None else PRIVATE)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        write_at(self._fd, offset, memoryview(data), self._path)
        self.nbytes = max(self.nbytes, offset + len(data))
        self._num_unflushed += len(data)
        if self._num_unflushed >= _FLUSH_NBYTES and not (self._flusher and self._flusher.is_alive()):
            self._start_flush()

    def truncate(self, nbytes: int) -> None:
        with naming(self._path):
            os.ftruncate(self._fd, nbytes)
        self.nbytes = nbytes

    def sync(self) -> None:
        """Set the permissions and wait until the data is on the disk."""
        with naming(self._path):
            self._join()
            if self._flush_error is not None:
                raise self._flush_error
            if self._access is not None:
                give_access(self._fd, self._access)
            os.fsync(self._fd)

    def _start_flush(self) -> None:
        self._num_unflushed = 0
        flusher = threading.Thread(target=self._flush, name="tensorwire-flush", daemon=True)
        with suppress(RuntimeError):  # no more threads: `sync` waits for all of it then
            flusher.start()
            self._flusher = flusher

    def _flush(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:  # the system tells of it once: keep it for `sync`
            self._flush_error = error

    def _join(self) -> None:
        if self._flusher is not None:
            self._flusher.join()

    def close(self) -> None:
        self._join()
        if self._fd >= 0:
            close(self._fd)
            self._fd = -1

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def sync_directory(path: Path) -> None:
    """Wait until the entries of a directory are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with naming(path):
            os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system whose directories cannot be synced
            raise
    finally:
        close(fd)
