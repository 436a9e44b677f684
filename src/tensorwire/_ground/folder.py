"""An open directory. What is done in it goes by its descriptor and a name, so no link on the way leads elsewhere."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .copies import not_copied
from .filesystem import RENAME_EXCHANGE, close, renameat2

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_HARD_LINK = {errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP}


class Folder:
    """Names are those of entries directly in it: no call takes a path, and none follows a link. Use it in a ``with``
    statement.

    Attributes:
        path: where it was found, for messages.
    """

    _descriptor = -1
    __reduce_ex__ = not_copied("an open directory", "open it again by its path")

    def __init__(self, path: Path) -> None:
        """Open a directory. Links on the way to it are followed."""
        self.path = path
        self._descriptor = os.open(path, _DIRECTORY)

    def enter(self, name: str, *, make: bool = False) -> Folder:
        """A directory in it.

        Raises:
            FileExistsError: it is a link, or no directory.
            FileNotFoundError: it is not there, without `make`.
        """
        with self._telling(name):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self._descriptor)
            try:
                descriptor = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._descriptor)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    text = "is no directory of its own, but a link or a file; move it away"
                    raise FileExistsError(errno.EEXIST, text) from None
                raise
        found = Folder.__new__(Folder)
        found.path, found._descriptor = self.path / name, descriptor
        return found

    def open(self, name: str, flags: int, mode: int = 0o666, *, follow: bool = False) -> int:
        """The descriptor of a file in it. OSError with ELOOP for a link, unless it is to be followed."""
        flags |= os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)  # a pipe would wait for its other end
        with self._telling(name):
            return os.open(name, flags, mode, dir_fd=self._descriptor)

    def status(self, name: str, *, follow: bool = False) -> os.stat_result | None:
        """What stands under a name; None if nothing does."""
        with self._telling(name), suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=follow)
        return None

    def target_of(self, name: str) -> str | None:
        """Where a link leads; None if there is no link."""
        with self._telling(name):
            try:
                return os.readlink(name, dir_fd=self._descriptor)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.ENOENT):
                    return None
                raise

    def names(self) -> list[str]:
        return sorted(os.listdir(self._descriptor))  # noqa: PTH208 - a descriptor

    def write(self, name: str, data: bytes) -> None:
        """Make a file, and wait until its content is on the disk."""
        with self._telling(name), os.fdopen(self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def make_link(self, name: str, target: str) -> None:
        """Make a symbolic link."""
        with self._telling(name):
            os.symlink(target, name, dir_fd=self._descriptor)

    def share(self, name: str, other: Folder, new: str) -> bool:
        """Give a regular file a second name in another directory, a hard link; False where that cannot be."""
        status = self.status(name)
        if status is None or not stat.S_ISREG(status.st_mode):
            return False
        with other._telling(new):
            try:
                os.link(name, new, src_dir_fd=self._descriptor, dst_dir_fd=other._descriptor, follow_symlinks=False)
            except OSError as error:
                if error.errno in _NO_HARD_LINK:
                    return False
                raise
        return True

    def set_time(self, name: str, status: os.stat_result) -> None:
        """Give a file the time of another one."""
        with self._telling(name):
            times = status.st_atime_ns, status.st_mtime_ns
            os.utime(name, ns=times, dir_fd=self._descriptor, follow_symlinks=False)

    def move(self, name: str, other: Folder, new: str) -> None:
        """Move an entry, in one step, to a name that nothing has or in the place of what has it."""
        with other._telling(new):
            os.rename(name, new, src_dir_fd=self._descriptor, dst_dir_fd=other._descriptor)

    def exchange(self, name: str, other: Folder, other_name: str) -> bool:
        """Swap two entries in one step; False where the file system cannot."""
        with other._telling(other_name):
            return renameat2(name, other_name, RENAME_EXCHANGE, self._descriptor, other._descriptor)

    def remove(self, name: str) -> None:
        """Remove what is no directory, if it is there."""
        with self._telling(name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove a directory with its files. What is a directory in it stays, and so does the directory then."""
        status = self.status(name)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            self.remove(name)
            return
        with self.enter(name) as folder:
            for each in folder.names():
                with suppress(IsADirectoryError, PermissionError):  # both are what systems say of a directory
                    folder.remove(each)
        with self._telling(name):
            try:
                os.rmdir(name, dir_fd=self._descriptor)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise

    def sync(self) -> None:
        """Wait until its entries are on the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system whose directories cannot be synced
                raise type(error)(error.errno, error.strerror, str(self.path)) from None

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Put the whole path into an OSError: a name alone says nothing."""
        try:
            yield
        except OSError as error:
            if error.errno is None or error.filename == str(self.path / name):
                raise
            raise type(error)(error.errno, error.strerror, str(self.path / name)) from error

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *error: object) -> None:
        if self._descriptor >= 0:
            close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        """Ctrl-C may come before a ``with`` statement has begun."""
        self.__exit__()
