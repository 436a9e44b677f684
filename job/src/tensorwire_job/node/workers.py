"""The children of a rank's process: workers of its data loader, above all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ..model import Worker
from ..page import process

MAX_WORKERS: Final = 32
_MAX_DEPTH: Final = 5  # ninja, a shell, c++ and cc1plus, of a rank that compiles an extension
_PROC = Path("/proc")


def read(pid: int) -> list[Worker]:
    """The processes below this one; none where the kernel does not tell."""
    found = (_worker(child) for child in _below(pid, _MAX_DEPTH)[:MAX_WORKERS])
    return [worker for worker in found if worker is not None]


def _below(pid: int, depth: int) -> list[int]:
    """The children, and then theirs, until there are enough."""
    found = _children(pid)
    for child in found[:MAX_WORKERS] if depth > 1 else []:
        if len(found) >= MAX_WORKERS:
            break
        found += _below(child, depth - 1)
    return found


def _children(pid: int) -> list[int]:
    """The children of a process. The kernel lists each with the thread that began it."""
    tasks = f"{_PROC}/{pid}/task"
    children: list[int] = []
    try:
        for task in os.listdir(tasks):  # noqa: PTH208 - a process may have thousands of threads
            children += map(int, _text(f"{tasks}/{task}/children").split())
    except OSError:
        pass
    return sorted(children)


def _worker(pid: int) -> Worker | None:
    stat = process.read_stat(pid)
    if stat is None or not stat.is_alive:
        return None
    channel = _text(f"{_PROC}/{pid}/wchan")
    name = _text(f"{_PROC}/{pid}/comm").strip()
    return Worker(pid, name, stat.state, "" if channel == "0" else channel, stat.cpu_seconds)


def _text(path: str) -> str:
    """Empty where there is none: a thread may end at any time."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1 << 12).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
