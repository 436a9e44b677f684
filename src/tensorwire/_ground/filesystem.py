"""The file system, as far as the standard library leaves it out: what stands where, and renaming with conditions."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
"""EPERM is what a container answers that filters system calls. Where it is the file system's own, the plain call that
follows fails with it too."""


def absolute(path: str | os.PathLike[str]) -> Path:
    """A path from the root on; FileNotFoundError if it is relative, and the working directory is gone."""
    found = Path(path)
    if found.is_absolute():
        return found
    try:
        return Path.cwd() / found
    except FileNotFoundError:
        text = "the working directory is gone; change to one that exists, or give a path that begins with a slash"
        raise FileNotFoundError(errno.ENOENT, text, str(path)) from None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put `path` into an OSError that has no file name: those of descriptors."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def following(path: object) -> Iterator[None]:
    """Say of what is missing where it is a link that leads nowhere, as the caches of hubs keep some."""
    try:
        yield
    except FileNotFoundError as error:
        if isinstance(path, Path) and path.is_symlink():
            text = f"a link that leads nowhere, to {str(path.readlink())!r}; fetch the file again"
            raise FileNotFoundError(errno.ENOENT, text, str(path)) from error
        raise


def close(descriptor: int) -> None:
    """Close, and ignore the answer: what has to last is synced, and after an error the descriptor is gone too."""
    with suppress(OSError):
        os.close(descriptor)


def lock_now(descriptor: int, path: Path, refusal: str) -> None:
    """Lock an open file for one process at a time. Raises BlockingIOError with `refusal` if another one has it."""
    try:
        with naming(path):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(errno.EWOULDBLOCK, refusal, str(path)) from None


def unlock(descriptor: int) -> None:
    """Release the lock, and close. Closing alone leaves the lock to a process that was forked meanwhile."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    close(descriptor)


@contextmanager
def alone_in(root: Path) -> Iterator[None]:
    """Keep other runs off a directory whose files are changed in place: two that take turns file by file would leave
    the checkpoint of neither. For a file the lock of its staging directory is enough.

    Raises:
        BlockingIOError: one is at work.
    """
    if not root.is_dir():
        yield
        return
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            lock_now(descriptor, root, "another process is changing it; wait for it to end")
        except OSError as error:
            if isinstance(error, BlockingIOError):  # else a file system that does not lock directories
                raise
        yield
    finally:
        unlock(descriptor)


def mark_of(path: Path) -> str | None:
    """A mark that tells the thing at a path from any other; None if nothing stands there."""
    status = lstat(path)
    return None if status is None else mark(status)


def mark(status: os.stat_result) -> str:
    """The inode, and of files what tells one from the next that the same inode is given to. No device: its number may
    be another one after a restart, and all of a result lies on one."""
    if stat.S_ISDIR(status.st_mode):
        return f"{status.st_ino}"
    return f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"


def is_same(a: Path, b: Path) -> bool:
    """Whether two paths, links followed, lead to one file or directory, under any names."""
    try:
        return os.path.samestat(a.stat(), b.stat())
    except OSError:  # nothing is there, or a link leads in a circle
        return False


def lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Everything in a directory, at any depth, by relative path; links are not followed."""
    prefixes = [""]
    while prefixes:
        prefix = prefixes.pop()
        with os.scandir(root / prefix) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                yield prefix + entry.name, status
                if stat.S_ISDIR(status.st_mode):
                    prefixes.append(f"{prefix}{entry.name}/")


def holds(directory: os.stat_result, path: Path) -> bool:
    real = resolved(path)
    for place in (real, *real.parents):
        with suppress(FileNotFoundError, PermissionError):
            if os.path.samestat(place.stat(), directory):
                return True
    return False


def lies_in(path: Path, directory: Path) -> bool:
    """Whether a path leads to the directory or into it, links followed, under any names."""
    try:
        return directory.is_dir() and holds(directory.stat(), path)
    except FileNotFoundError:
        return False


def mounts() -> set[bytes]:
    """All mount points: files, and directories of the same file system, may be some too."""
    with suppress(OSError):
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
        return {re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split(b" ")[4]) for line in lines}
    return set()


def resolved(path: Path) -> Path:
    """Where a path leads, links followed; of links in a circle it follows none."""
    return Path(os.path.realpath(path))


def leads_out(path: Path, directory: Path, other: Path) -> bool:
    """Whether a file is a link that leads out of a directory. In the cache of a hub every file is a link, into one
    folder: there it has to lie beside what `other`, a file of the same directory, is a link to."""
    place = resolved(path)
    return resolved(directory) not in place.parents and place.parent != resolved(other).parent


def real(path: Path) -> Path:
    return resolved(path.parent) / path.name


def kind(mode: int) -> str:
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a directory",
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def open_up(directory: Path) -> None:
    """Make an entry of a directory removable that we own and that is read-only."""
    if not os.access(directory, os.W_OK | os.X_OK):
        directory.chmod(0o700)


def remove_empty(directory: Path) -> bool:
    """Remove a directory unless it holds something; whether it is gone."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def rename_new(new: Path, path: Path) -> None:
    """Rename to a name that nothing has; FileExistsError if something has it."""
    if renameat2(new, path, _RENAME_NOREPLACE):
        return
    if lstat(path) is not None:
        raise FileExistsError(
            errno.EEXIST,
            "another process made this while the result was being made; name another destination",
            str(path),
        )
    if not new.is_dir():
        with suppress(OSError):
            os.link(new, path, follow_symlinks=False)  # fails if something has the name by now
            new.unlink()
            return
    new.rename(path)


def exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step; False where the file system cannot."""
    return renameat2(a, b, RENAME_EXCHANGE)


def reserve(descriptor: int, offset: int, nbytes: int) -> None:
    """Give a part of a new file its room on the disk. A full disk is found out at once, and the pages that are then
    written cost less CPU. Where the file system cannot, nothing happens: what the C library's `posix_fallocate` does
    instead costs more than it saves."""
    try:
        call = ctypes.CDLL(None, use_errno=True).fallocate64
    except AttributeError:
        return
    if nbytes and call(descriptor, 0, ctypes.c_int64(offset), ctypes.c_int64(nbytes)) != 0:
        code = ctypes.get_errno()
        if code not in _UNSUPPORTED:
            raise OSError(code, os.strerror(code))


def renameat2(
    a: str | Path, b: str | Path, flags: int, a_directory: int = _AT_FDCWD, b_directory: int = _AT_FDCWD
) -> bool:
    """Rename under a condition; False where the system or the file system cannot.

    Args:
        a_directory, b_directory: descriptors of what `a` and `b` are relative to, by default the working directory.
    """
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an old C library
        return False
    if call(a_directory, os.fsencode(a), b_directory, os.fsencode(b), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(b))
