"""Training with several process groups, and what goes wrong with these."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import threading
import time

import torch
import torch.distributed as dist

from .common import befallen_rank, befalls, folder, is_befallen
from .small_training import Training, die_with_parent, steps

_WORLD = range(4)


class Metrics:
    """A thread that reduces metrics in a group of its own. A lock keeps its collectives apart from those of training:
    which comes first is up to each rank.
    """

    def __init__(self) -> None:
        self.group = dist.new_group(group_desc="metrics")
        self.lock = threading.Lock()
        self.is_due = threading.Event()
        self.seconds = 0.0  # that the next summary takes
        threading.Thread(target=self._reduce, daemon=True).start()

    def _reduce(self) -> None:
        while True:
            self.is_due.wait()
            self.is_due.clear()
            time.sleep(self.seconds)
            with self.lock:
                dist.all_reduce(torch.ones(16), group=self.group)


def lock_in_other_order() -> None:
    """One rank's metrics take longer once: its training gets the lock first, on the others the metrics do."""
    metrics = Metrics()
    for step in itertools.count(1):
        time.sleep(0.1)  # compute: the metrics have the lock by then
        with metrics.lock:
            dist.all_reduce(torch.ones(256))
        if step % 5 == 0:
            if befalls(step, 30):
                metrics.seconds = 0.5
            metrics.is_due.set()


def create_group_by_members() -> None:
    """A group is created by its members only, though all ranks have to: torch has a barrier there on demand
    (TORCH_DIST_INIT_BARRIER).
    """
    members = [rank for rank in _WORLD if rank != befallen_rank()]
    Training().train(then=lambda: is_befallen() or dist.new_group(members))


def miss_group_of_three() -> None:
    """Three of four ranks share a group; one of them waits for the lock of a file before it enters."""
    outsider = (befallen_rank() + 1) % len(_WORLD)
    group = dist.new_group([rank for rank in _WORLD if rank != outsider], group_desc="experts")
    for step in steps():
        if befalls(step):
            _wait_for_file()
        if dist.get_rank() != outsider:
            dist.all_reduce(torch.ones(256), group=group)
        dist.all_reduce(torch.ones(256))


def _wait_for_file() -> None:
    """A process that an earlier job left behind has locked the index of the data set."""
    index = folder() / "index"
    index.touch()
    is_locked = folder() / "index.locked"
    if os.fork() == 0:
        die_with_parent()
        with index.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            is_locked.touch()
            signal.pause()
    while not is_locked.exists():
        time.sleep(0.01)
    with index.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def leave_loop_early() -> None:
    """Two groups of all ranks, used in a loop each; a rank leaves the first loop early."""
    generator, discriminator = dist.new_group(), dist.new_group()
    for step in range(400):
        time.sleep(0.01)
        if befalls(step, 200):
            break
        dist.all_reduce(torch.ones(100), group=generator)
    while True:
        time.sleep(0.01)
        dist.all_reduce(torch.ones(100), group=discriminator)


def stop_before_group() -> None:
    """A rank is stopped, and the others make the next group, which all have to."""
    Training().train(lambda: os.kill(os.getpid(), signal.SIGSTOP), dist.new_group)
