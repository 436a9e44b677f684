"""Jobs that hang, and of which an analyzer once said something else when they were dead."""

from __future__ import annotations

import itertools
import os
import signal
import time

import torch.distributed as dist

from .common import case, folder, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, Training, start


def stop_before_group() -> None:
    """A rank is stopped, and the others make the next group, which all have to."""
    training = Training()
    for step in itertools.count():
        training.step()
        if step == STEPS_BEFORE:
            if is_befallen():
                mark_fault()
                os.kill(os.getpid(), signal.SIGSTOP)
            dist.new_group()


def wait_for_file() -> None:
    """A rank waits until nobody holds the index of its data set. The process that made the lock file is dead."""
    training = Training()
    lock = folder() / "index.lock"
    for step in itertools.count():
        training.step()
        if step == STEPS_BEFORE and is_befallen():
            lock.touch()
            mark_fault()
            while lock.exists():
                time.sleep(0.1)


CASES = {"stopped-before-group": stop_before_group, "lock-of-files": wait_for_file}


if __name__ == "__main__":
    start()
    CASES[case()]()
