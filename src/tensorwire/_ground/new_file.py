"""Files that are written whole, in one step, or to which lines are added: charts, reports, recordings, journals."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from io import FileIO
from pathlib import Path

from .destination import Destination
from .filesystem import absolute, kind, lstat, naming

_TEMPORARY = re.compile(r"\.tensorwire-[0-9a-f]{16}")


def temporary_name() -> str:
    """A name that no other file has, for one that gets its own name once it is whole."""
    return f".tensorwire-{secrets.token_hex(8)}"


def temporary_files(directory: Path) -> set[str]:
    """The names of files in a directory that some process writes, or has left since it was killed."""
    with os.scandir(directory) as entries:
        return {
            each.name for each in entries if _TEMPORARY.fullmatch(each.name) and each.is_file(follow_symlinks=False)
        }


class NewFile:
    """A file that is to be written whole, once its content is known. One that it replaces gives it its permissions."""

    def __init__(self, path: Path, *, force: bool, example: str) -> None:
        """Check the place before the work, as `Destination.check` does. `example` is the name of a file, for advice."""
        self._destination = Destination(absolute(path), force=force, example=example)
        self._checked = self._destination.check()

    def write(self, data: bytes, *, sync: bool = True) -> None:
        """Put it there, all of it or nothing, and with `sync` wait until the content is on the disk.

        Raises:
            FileExistsError: something came there meanwhile.
            OSError: writing fails; nothing has changed.
        """
        path = self._destination.path
        new = path.with_name(temporary_name())
        mode = 0o666 if self._checked is None else self._checked.mode
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with naming(path), os.fdopen(descriptor, "wb") as file:
                if self._checked is not None:
                    os.fchmod(descriptor, mode)  # the umask had no say in the old one's
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(descriptor)
            self._destination.replace(new, self._destination.confirm(self._checked), new)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def open_to_append(path: Path) -> FileIO:
    """A regular file that is made if there is none; FileExistsError for a link or anything else."""
    check_regular(path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return open(os.open(path, flags, 0o666), "ab", buffering=0)  # noqa: PTH123 - a descriptor


def move_aside(path: Path) -> None:
    """Give a file that has grown the suffix ".1", in the place of an older one."""
    older = path.with_name(path.name + ".1")
    check_regular(path)
    check_regular(older)
    path.replace(older)


def check_regular(path: Path) -> bool:
    """Whether there is a regular file; FileExistsError if there is anything else."""
    status = lstat(path)
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise FileExistsError(errno.EEXIST, f"is {kind(status.st_mode)}, not a regular file; move it", str(path))
    return status is not None
