"""Processes that tests start."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import tensorwire

if TYPE_CHECKING:
    from types import ModuleType


def bare_python(*more: ModuleType) -> dict[str, str]:
    """An environment in which `python -S`, which starts in no time, finds tensorwire, and more
    packages of ours, wherever they are installed."""
    folders = (str(Path(str(package.__file__)).parents[1]) for package in (tensorwire, *more))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}


PRINT_PEAK_MEMORY = """
import pathlib
print(1024 * int(pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]))
"""
"""Code that ends a program in a process of its own, and prints the most bytes of memory that it has had at once.
ru_maxrss would not do: a process inherits it from the one that started it, here from one that ran other tests."""


def exit_code_of_child(child: int, seconds: float) -> int:
    """The exit code of a forked child, which must end in time."""
    deadline = time.monotonic() + seconds
    while (status := os.waitpid(child, os.WNOHANG))[0] == 0:
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(status[1])
