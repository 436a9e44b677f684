"""What a process takes, and a limit on it: control groups of version 1 and 2, whose limits count the page cache."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUPS = Path("/sys/fs/cgroup")
GIB = 1 << 30


@dataclass(frozen=True)
class Limit:
    """A control group with a limit of memory.

    Attributes:
        folder: of the group.
        nbytes: the limit.
        peak_file: where the kernel counts the most that the group took, page cache included.
    """

    folder: Path
    nbytes: int
    peak_file: str

    def peak(self) -> int | None:
        """The most that the group took; None where the kernel does not count it."""
        try:
            return int((self.folder / self.peak_file).read_text())
        except OSError:
            return None


@contextmanager
def limited(nbytes: int) -> Iterator[Limit]:
    """A new control group with this limit, removed in the end.

    Raises:
        OSError: this process may not make one; the message says what it tried.
    """
    folder, limit_file, peak_file = _place()
    try:
        folder.mkdir()
        (folder / limit_file).write_text(str(nbytes))
        for swap in ("memory.swap.max", "memory.swappiness"):
            with suppress(OSError):
                (folder / swap).write_text("0")
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        raise OSError(f"no limit of memory: {error}; run it as root, or in a delegated control group") from error
    try:
        yield Limit(folder, nbytes, peak_file)
    finally:
        _remove(folder)


def _place() -> tuple[Path, str, str]:
    """The folder for a group, and the names of its files."""
    name = f"tensorwire-{os.getpid()}-{time.monotonic_ns()}"
    if (CGROUPS / "memory" / "memory.limit_in_bytes").exists():
        return CGROUPS / "memory" / name, "memory.limit_in_bytes", "memory.max_usage_in_bytes"
    if (CGROUPS / "cgroup.controllers").exists():
        with suppress(OSError):  # it may be on already, or be somebody else's to turn on: the limit will tell
            (CGROUPS / "cgroup.subtree_control").write_text("+memory")
        return CGROUPS / name, "memory.max", "memory.peak"
    raise OSError(f"no limit of memory: {CGROUPS} has no controller of memory, of version 1 or 2")


def _remove(folder: Path) -> None:
    """A group can be removed once its last process is gone, which may take a moment."""
    for _ in range(100):
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.1)


def join(folder: Path) -> None:
    """Move this process into a control group."""
    (folder / "cgroup.procs").write_text(str(os.getpid()))


def forget_files(directory: Path) -> None:
    """Write back what is dirty and empty the page cache: the whole of it as root, else of this directory's files."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        for path in directory.iterdir():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def peak_nbytes(process: int | str = "self") -> int:
    """The most that a process, by default this one, had in memory, mapped files included."""
    return _status("VmHWM", process)


def resident_nbytes() -> int:
    """What it has now."""
    return _status("VmRSS")


def forget_peak() -> None:
    """Let the peak begin anew at what the process has now."""
    Path("/proc/self/clear_refs").write_text("5")


def read_nbytes() -> int:
    """What this process had the disk read for it, page faults included; 0 where the kernel does not count it."""
    with suppress(OSError):
        for line in Path("/proc/self/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    return 0


def _status(name: str, process: int | str = "self") -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/{process}/status has no {name}")
