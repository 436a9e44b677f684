"""Ranks that pass messages: a pipeline, and a ring as context parallelism has it."""

from __future__ import annotations

import itertools
import time

import torch
import torch.distributed as dist

from .common import case, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, start

MICRO_BATCHES = 4


def pass_through_stages(num_micro_batches: int) -> None:
    """A step of this rank's stage: micro-batches go to the last stage, and their gradients come back."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for _ in range(num_micro_batches):
        if rank > 0:
            dist.recv(torch.empty(1024), rank - 1)
        if rank < last:
            dist.send(torch.ones(1024), rank + 1)
    for _ in range(num_micro_batches):
        if rank < last:
            dist.recv(torch.empty(1024), rank + 1)
        if rank > 0:
            dist.send(torch.ones(1024), rank - 1)


def run_pipeline() -> None:
    """One stage has another number of micro-batches configured from some step on."""
    for step in itertools.count():
        time.sleep(0.02)
        num_micro_batches = MICRO_BATCHES
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            num_micro_batches += 1
        pass_through_stages(num_micro_batches)


def run_ring() -> None:
    """One rank sends its block to the rank after the next, once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in itertools.count():
        time.sleep(0.02)
        neighbour = (rank + 1) % size
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            neighbour = (rank + 2) % size
        block, received = torch.ones(1024), torch.empty(1024)
        operations = [dist.P2POp(dist.isend, block, neighbour), dist.P2POp(dist.irecv, received, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        dist.all_reduce(torch.ones(256))


if __name__ == "__main__":
    start()
    {"micro-batches": run_pipeline, "wrong-neighbour": run_ring}[case()]()
