"""How much memory a process may have."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def machine_nbytes() -> int:
    """The memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_nbytes() -> int:
    """What the machine has, or less where a control group limits the process."""
    limits = [machine_nbytes()]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            group = Path("/sys/fs/cgroup", line.partition("::")[2].lstrip("/"))
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # none, or "max"
                    limits.append(int((folder / "memory.max").read_text()))
    return min(limits)
