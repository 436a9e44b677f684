"""What the runner tells a program: whom the fault befalls, and which of its faults it is."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

FAULT = "fault"  # a file in TW_FAULTS_DIR, there from the moment of the fault


def is_befallen() -> bool:
    """Whether the fault befalls this rank."""
    return int(os.environ["RANK"]) == int(os.environ["TW_FAULTS_RANK"])


def case() -> str:
    """The name of the variant."""
    return os.environ["TW_FAULTS_CASE"]


def folder() -> Path:
    """For files of the job; removed after it."""
    return Path(os.environ["TW_FAULTS_DIR"])


def mark_fault() -> None:
    """Say that the fault is now. The first to say so counts."""
    new = folder() / f"{FAULT}.{os.environ['RANK']}.new"
    new.write_text(repr(time.monotonic()))  # one clock for all processes of the machine
    with suppress(FileExistsError):
        os.link(new, folder() / FAULT)  # whole, and never replaced
    new.unlink()


def stay_away() -> None:
    """The fault: this rank waits for a lock that nobody gives back."""
    lock = threading.Lock()
    lock.acquire()
    mark_fault()
    lock.acquire()
