"""Ranks that wait for each other's messages in circles, since one of them has left some out."""

from __future__ import annotations

import itertools
import time

import torch
import torch.distributed as dist

from .common import case, is_befallen, mark_fault
from .misrouted_messages import MICRO_BATCHES, pass_through_stages
from .small_training import STEPS_BEFORE, start


def run_pipeline() -> None:
    """One stage takes a batch for a bad one, and goes on with the next step."""
    for step in itertools.count():
        time.sleep(0.02)
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
        else:
            pass_through_stages(MICRO_BATCHES)
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
