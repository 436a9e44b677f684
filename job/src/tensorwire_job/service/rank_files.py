"""A directory with one file of each rank, which other tools have written."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from ..model import MAX_RANKS

MAX_FILES: Final = 1 << 14
"""More files in one directory are not of ranks."""

_NUMBER = re.compile(r"[0-9]+")
_T = TypeVar("_T")


class Content(NamedTuple):
    """What a file holds, and when it was written, in seconds of the wall's clock."""

    data: bytes
    written: float


def read_files(
    directory: Path, max_nbytes: int, parse: Callable[[Content], _T | str]
) -> tuple[dict[int, tuple[str, _T]], dict[str, str]]:
    """The name and the content of the file of each rank, and why the other files of the directory are left out.

    The last number in the name of a file is the rank. The newest of several files of one rank is taken.

    Args:
        max_nbytes: of a file; what is behind these is not read.
        parse: gives what a file says, or why it is left out.

    Raises:
        OSError: the directory cannot be read.
        ValueError: it has more than MAX_FILES files.
    """
    with os.scandir(directory) as entries:
        files = list(islice((entry for entry in entries if not entry.is_dir(follow_symlinks=False)), MAX_FILES + 1))
    if len(files) > MAX_FILES:
        raise ValueError(f"{directory} has more than {MAX_FILES:,} files, expected one of each rank")
    found: dict[int, tuple[str, _T]] = {}
    skipped: dict[str, str] = {}
    for file in sorted(files, key=lambda file: (-_changed(file), file.name)):
        numbers = _NUMBER.findall(file.name)
        rank = int(numbers[-1]) if numbers else MAX_RANKS
        if rank >= MAX_RANKS:
            skipped[file.name] = "its name has no number of a rank"
            continue
        try:
            parsed = parse(read_front(file, max_nbytes))
        except OSError as error:
            skipped[file.name] = error.strerror or str(error)
            continue
        if isinstance(parsed, str):
            skipped[file.name] = parsed
        elif rank in found:
            skipped[file.name] = f"{found[rank][0]} is of rank {rank} too, and is no older"
        else:
            found[rank] = file.name, parsed
    return dict(sorted(found.items())), dict(sorted(skipped.items()))


def _changed(file: os.DirEntry[str]) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # it has gone: to open it says why
        return 0


def read_front(file: str | os.PathLike[str], max_nbytes: int) -> Content:
    """The first bytes of a regular file. Raises OSError; it never waits."""
    # Without O_NONBLOCK a pipe, and some files of /proc, would be waited for.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return Content(os.read(descriptor, max_nbytes), status.st_mtime)
    finally:
        os.close(descriptor)
