"""Ranks that wait for each other's messages in circles, since one of them has left some out."""

from __future__ import annotations

import itertools
import time

import torch
import torch.distributed as dist

from .common import case, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, start

_MICRO_BATCHES = 4


def run_pipeline() -> None:
    """One stage takes a batch for a bad one, and goes on with the next step."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for step in itertools.count():
        time.sleep(0.02)
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
        else:
            for _ in range(_MICRO_BATCHES):
                if rank > 0:
                    dist.recv(torch.empty(1024), rank - 1)
                if rank < last:
                    dist.send(torch.ones(1024), rank + 1)
            for _ in range(_MICRO_BATCHES):
                if rank < last:
                    dist.recv(torch.empty(1024), rank + 1)
                if rank > 0:
                    dist.send(torch.ones(1024), rank - 1)
        dist.all_reduce(torch.ones(256))


def run_ring() -> None:
    """The block goes round once a step. One rank neither takes nor passes it on once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    block = torch.ones(1024)
    for step in itertools.count():
        time.sleep(0.02)
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
        elif rank == 0:
            dist.send(block, after)
            dist.recv(block, before)
        else:
            dist.recv(block, before)
            dist.send(block, after)
        dist.all_reduce(torch.ones(256))


if __name__ == "__main__":
    start()
    {"skipping-stage": run_pipeline, "skipping-block": run_ring}[case()]()
