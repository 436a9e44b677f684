"""Ranks that pass messages: a pipeline, a chain, and a ring as context parallelism has it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .common import STEPS_BEFORE, befalls, is_befallen, stay_away
from .small_training import after, before, pass_on, run, steps

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
    for step in steps():
        pass_through_stages(MICRO_BATCHES + befalls(step))


def run_ring() -> None:
    """One rank sends its block to the rank after the next, once."""
    for step in steps():
        for work in pass_on(torch.ones(1024), torch.empty(1024), after(2) if befalls(step) else after()):
            work.wait()
        dist.all_reduce(torch.ones(256))


def skip_step() -> None:
    """One stage takes a batch for a bad one, and goes on with the next step."""
    for step in steps():
        if not befalls(step):
            pass_through_stages(MICRO_BATCHES)
        dist.all_reduce(torch.ones(256))


def skip_turn() -> None:
    """The block goes round once a step. One rank neither takes nor passes it on once."""
    block = torch.ones(1024)
    for step in steps():
        if befalls(step):
            pass
        elif dist.get_rank() == 0:
            dist.send(block, after())
            dist.recv(block, before())
        else:
            dist.recv(block, before())
            dist.send(block, after())
        dist.all_reduce(torch.ones(256))


def wait_in_chain() -> None:
    """A pipeline by hand: each rank gets from the one before and sends to the next. One rank waits for a lock."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    weights = torch.eye(64)
    for step in steps():
        activations = torch.ones(8, 64)
        if rank > 0:
            dist.recv(activations, rank - 1)
        if step == STEPS_BEFORE and is_befallen():
            stay_away()
        activations = activations @ weights
        if rank < last:
            dist.send(activations, rank + 1)


if __name__ == "__main__":
    run(globals())
