"""The file lock that the main thread waits for, and the process that holds it.

/proc/locks (proc_locks(5)) has a line for each lock, with the pid of the process that took it, and below it a line with
`->` for each process that waits. It does so for flock and for POSIX locks; of the locks of open file descriptions it
has no pid. Pids are those of the namespace of /proc. A holder of another namespace is not in it.

Libraries that poll wait in no call of the kernel. Their stack shows what they wait for, and the path of the lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from types import FrameType
from typing import Final

from ..model import FOR_LOCK, holder_of_lock, in_lock_of
from ..page.process import read_stat

_MAX_NBYTES: Final = 1 << 20  # of /proc/locks
_MAX_PID: Final = 1 << 22  # the kernel's limit
_MAX_HOLDERS, _MAX_FILES = 64, 1024
_FLOCK, _POSIX = b"FLOCK", b"POSIX"  # leases, and what a file server holds, are no locks that a program waits for
_WAITS: Final = (
    "locks_lock_inode_wait", "flock_lock_inode_wait", "posix_lock_inode_wait", "do_lock_file_wait", "fcntl_setlk",
)  # fmt: skip
"""The kernel's functions that wait for a file lock."""

# The end of a file's name, a function in it that polls a lock, and its variable that has the path; "" none.
_POLLS: Final = (
    ("filelock/_api.py", "acquire", "lock_filename"),
    ("filelock/_core/_acquire.py", "_poll_until_acquired", "lock_filename"),
    ("torch/utils/file_baton.py", "wait", ""),
)


def waited_for(stack: Iterable[FrameType]) -> str:
    """ "file lock (pid 4711)" with the pid of the holder; "file lock" where that is not told; "" while the main thread,
    whose stack this is, waits for none. Touches no file but those of /proc: another one may be on storage that hangs.
    """
    if _read("/proc/self/wchan", 64).decode("utf-8", "replace") in _WAITS:
        return _told(_holder_before(os.getpid()))
    for call in stack:
        for file, function, variable in _POLLS:
            if call.f_code.co_name == function and call.f_code.co_filename.endswith(file):
                path = call.f_locals.get(variable)
                return _told(_holder_of(path) if isinstance(path, str) else 0)
    return ""


def is_left_by_death(activity: str) -> bool:
    """Whether the process that held the lock of this activity has ended, which has given the lock to the next."""
    pid = holder_of_lock(activity)
    stat = read_stat(pid) if pid else None
    return bool(pid) and (stat is None or not stat.is_alive)


def _told(holder: int) -> str:
    """Pids of another namespace than that of the page would name another process."""
    is_ours = False
    with suppress(OSError):
        is_ours = os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 - no path, a number
    return in_lock_of(holder) if is_ours and 0 < holder <= _MAX_PID else FOR_LOCK


def _holder_before(waiting: int) -> int:
    """The process that holds the lock that this one waits for; 0 where none is listed."""
    holder = 0
    for is_waiting, pid in _listed():
        if not is_waiting:
            holder = pid
        elif pid == waiting:
            return holder
    return 0


def _holder_of(path: str) -> int:
    """The process that holds a lock and has opened this file; 0 where none is listed, or several are."""
    pids = dict.fromkeys(pid for is_waiting, pid in _listed() if not is_waiting and pid != os.getpid())
    found = [pid for pid in islice(pids, _MAX_HOLDERS) if os.path.abspath(path) in _files(pid)]  # noqa: PTH100 - no I/O
    return found[0] if len(found) == 1 else 0


def _files(pid: int) -> Iterator[str]:
    """The paths of the files that a process has opened; none where they are secret."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder)[:_MAX_FILES]:  # noqa: PTH208 - a process may have thousands of files
            with suppress(OSError):
                yield os.readlink(f"{folder}/{name}")  # noqa: PTH115 - as above


def _listed() -> Iterator[tuple[bool, int]]:
    """For each line whether its process waits for the lock before it, and the pid; 0 where there is none."""
    for line in _read("/proc/locks", _MAX_NBYTES).splitlines():
        _, *fields = line.split() or [b""]
        is_waiting = fields[:1] == [b"->"]
        fields = fields[is_waiting:]
        pid = fields[3] if len(fields) > 3 and fields[0] in (_FLOCK, _POSIX) else b""
        yield is_waiting, int(pid) if pid.isdigit() and len(pid) < 8 else 0


def _read(path: str, nbytes: int) -> bytes:
    """The beginning of a file of /proc, as far as its last whole line where it is longer; empty where there is none."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - for each look
            text = b""
            while len(text) < nbytes and (more := file.read(nbytes - len(text))):
                text += more
    except OSError:
        return b""
    return text if len(text) < nbytes else text[: text.rfind(b"\n") + 1]
