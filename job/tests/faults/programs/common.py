"""What the runner tells a program: whom the fault befalls."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

FAULT = "fault"  # a file in TW_FAULTS_DIR, there from the moment of the fault
STEPS_BEFORE = 70  # that a job trains well: a second and a half, and more
STEPS_BEFORE_SLOW = 240  # where the fault makes it slow: six seconds and more


def befallen_rank() -> int:
    return int(os.environ["TW_FAULTS_RANK"])


def is_befallen() -> bool:
    """Whether the fault befalls this rank."""
    return int(os.environ["RANK"]) == befallen_rank()


def befalls(step: int, last: int = STEPS_BEFORE) -> bool:
    """Whether the fault befalls this rank in this step; if so, it is marked."""
    is_now = step == last and is_befallen()
    if is_now:
        mark_fault()
    return is_now


def gets_slow(step: int) -> bool:
    """Whether this rank is slow in this step, as it is from some step on; if so, it is marked."""
    return step >= STEPS_BEFORE_SLOW and befalls(step, step)


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
    """The fault: this rank waits for a lock that is never given back."""
    lock = threading.Lock()
    lock.acquire()
    mark_fault()
    lock.acquire()


def wait_for_server() -> None:
    """The server never answers."""
    client, _server = socket.socketpair()
    client.recv(64)
