"""The file that a rank writes its stacks to when it gets a signal."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path
from typing import Final

SIGNAL: Final = signal.SIGRTMIN + 5


def stack_path(page: Path) -> Path:
    """Where the rank of a page writes its stack."""
    return page.with_suffix(".stack")


def listen(page: Path) -> None:
    """Have this rank write the stacks of all threads to `stack_path` whenever the agent asks for it.

    Raises:
        OSError: the file cannot be made.
        RuntimeError: it is not possible in this process.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(stack_path(page), flags, 0o600)  # stays open as long as the process lives
    faulthandler.register(SIGNAL, descriptor, all_threads=True, chain=False)
