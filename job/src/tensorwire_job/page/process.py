"""Facts about a process from /proc and the cgroups. Linux only; what a kernel does not offer reads as zero."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

_PROC = Path("/proc")
_CLOCK_TICK = 1 / os.sysconf("SC_CLK_TCK")
_STATE, _PARENT, _USER_TICKS, _SYSTEM_TICKS, _START = (
    0,
    1,
    11,
    12,
    19,
)  # fields of stat, counted from the state on (proc(5))


@dataclass(frozen=True, slots=True)
class Stat:
    """A line of /proc/PID/stat."""

    state: str
    start_ticks: int  # clock ticks from boot to the start: together with the pid it names one process for good
    cpu_seconds: float  # of all threads, ended ones included

    @property
    def is_alive(self) -> bool:
        """A zombie has ended, though its parent has not taken note."""
        return self.state not in "ZXx"

    @property
    def is_stopped(self) -> bool:
        """Stopped by a signal or a debugger."""
        return self.state in "Tt"


@dataclass(frozen=True, slots=True)
class Throttling:
    """How often, and how long, a cgroup and those above it were denied the CPU because their quota was spent."""

    num_throttled: int = 0
    seconds: float = 0.0


@cache
def boot_id() -> bytes:
    """16 bytes that no other boot of any machine has; zeros where the kernel hides them."""
    try:
        return bytes.fromhex((_PROC / "sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def read_stat(pid: int) -> Stat | None:
    """None if there is no such process, or not for us."""
    fields = _stat_fields(pid)
    if not fields:
        return None
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    return Stat(fields[_STATE].decode(), int(fields[_START]), ticks * _CLOCK_TICK)


def parent(pid: int) -> int:
    """The pid of its parent; 0 if there is no such process."""
    fields = _stat_fields(pid)
    return int(fields[_PARENT]) if fields else 0


def _stat_fields(pid: int) -> list[bytes]:
    try:
        line = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return []
    return line[line.rindex(b")") + 2 :].split()  # a program's name may hold blanks and brackets


def started(start_ticks: int) -> float:
    """When a process of this boot started, in seconds since 1970, by its ticks."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start_ticks * _CLOCK_TICK


def maps_file(pid: int, name: str) -> bool:
    """Whether a process has mapped a file of this name; True where it is secret. A large one takes milliseconds."""
    try:
        maps = (_PROC / str(pid) / "maps").read_bytes()
    except OSError:
        return True
    return not maps or f"/{name}".encode() in maps


def transferred(pid: int) -> tuple[int, int]:
    """Bytes that the calls of a process have read and written, from and to sockets too; -1 where they are secret."""
    try:
        lines = (_PROC / str(pid) / "io").read_text().splitlines()
        values = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    except (OSError, ValueError):
        return -1, -1
    return values.get("rchar", -1), values.get("wchar", -1)


def throttling(pid: int) -> Throttling:
    """The throttling by the cgroup that limits a process's CPU time, and by all cgroups around it that are visible."""
    num_throttled, seconds = 0, 0.0
    try:
        cgroups = (_PROC / str(pid) / "cgroup").read_text()
    except OSError:
        return Throttling()
    for folder in _cpu_cgroups(cgroups):
        try:
            lines = (folder / "cpu.stat").read_text().splitlines()
        except OSError:
            continue
        values = {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}
        num_throttled += values.get("nr_throttled", 0)
        seconds += values.get("throttled_usec", 0) / 1e6 + values.get("throttled_time", 0) / 1e9  # version 2, 1
    return Throttling(num_throttled, seconds)


class WaitClock:
    """Seconds that a process was runnable without running: between two looks, those of the thread that waited longest.

    Threads wait at once, and their sum may exceed the time. schedstat ends with its thread, so differences are added
    up: what was seen of a thread counts after its end.
    """

    def __init__(self, pid: int) -> None:
        self._tasks = f"{_PROC}/{pid}/task"
        self._nanoseconds: dict[str, int] = {}
        self._total = 0

    def read(self) -> float:
        now = {}
        try:
            names = os.listdir(self._tasks)  # noqa: PTH208 - a process may have thousands of threads
        except OSError:
            names = []
        for name in names:
            try:
                descriptor = os.open(f"{self._tasks}/{name}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue  # ended since, or the kernel keeps no such statistics
            try:
                now[name] = int(os.read(descriptor, 128).split()[1])
            except (OSError, IndexError):
                continue
            finally:
                os.close(descriptor)
        self._total += max(0, 0, *(value - self._nanoseconds.get(name, 0) for name, value in now.items()))
        self._nanoseconds = now
        return self._total / 1e9


@lru_cache(maxsize=64)
def _cpu_cgroups(cgroups: str) -> list[Path]:
    """The folders that /proc/PID/cgroup points to, innermost first."""
    paths = {}
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    mounts = _mounts()
    for controller in ("cpu", ""):  # version 1 if the controller is there, else version 2
        if controller in paths and controller in mounts:
            root, mount = mounts[controller]
            below = os.path.relpath(paths[controller], root)
            folder = mount if below.startswith("..") else mount / below
            return [folder, *(up for up in folder.parents if up.is_relative_to(mount))]
    return []


@cache
def _mounts() -> dict[str, tuple[str, Path]]:
    """By controller, "" for version 2: the part of the hierarchy that is mounted, and where."""
    mounts: dict[str, tuple[str, Path]] = {}
    try:
        lines = (_PROC / "self/mountinfo").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        left, _, right = line.partition(" - ")
        root, mount = left.split()[3:5]
        kind, _, options = right.split(" ", 2)  # what is mounted may have no name
        if kind == "cgroup2":
            mounts.setdefault("", (root, Path(mount)))
        elif kind == "cgroup" and "cpu" in options.split(","):
            mounts.setdefault("cpu", (root, Path(mount)))
    return mounts
