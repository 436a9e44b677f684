"""Training whose ranks all fail because of a process that is no rank."""

from __future__ import annotations

import itertools
import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist

from .common import is_befallen, mark_fault
from .small_training import STEPS_BEFORE, Training, die_with_parent


def main() -> None:
    """The process that hosts the store is killed, and then all make the next group, which asks the store."""
    torch.set_num_threads(1)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host = os.fork() if is_befallen() else 0
    if is_befallen() and host == 0:
        die_with_parent()
        store = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)
        while True:
            signal.pause()
    store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(minutes=30))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    training = Training()
    for step in itertools.count():
        training.step()
        if step == STEPS_BEFORE:
            if is_befallen():
                mark_fault()
                os.kill(host, signal.SIGKILL)
                os.waitpid(host, 0)
            dist.barrier()
            dist.new_group()


if __name__ == "__main__":
    main()
