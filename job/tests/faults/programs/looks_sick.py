"""Jobs with nothing wrong: each looks for a while like one that has a fault."""

from __future__ import annotations

import itertools
import os
import time

import torch
import torch.distributed as dist

from .common import case, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, STEPS_BEFORE_SLOW, Training, start


def lengthen_sequences() -> None:
    """The curriculum goes on to longer sequences: every step of every rank takes six times as long."""
    training = Training()
    for step in itertools.count():
        if step == STEPS_BEFORE_SLOW:
            mark_fault()
        training.step(0.02 if step < STEPS_BEFORE_SLOW else 0.15)


def leave_by_agreement() -> None:
    """One rank leaves, as all have agreed, and the others go on as a job of three."""
    training = Training()
    for _ in range(STEPS_BEFORE):
        training.step()
    port = int(os.environ["MASTER_PORT"]) + 1
    dist.barrier()
    rank = dist.get_rank()
    dist.destroy_process_group()
    if is_befallen():
        mark_fault()
        return
    new_rank = rank - (rank > int(os.environ["TW_FAULTS_RANK"]))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=new_rank, world_size=3)
    training = Training()
    while True:
        training.step()


def evaluate_alone() -> None:
    """All ranks evaluate on their own share of the data: 14 s of compute without a collective, then training goes on,
    and one of them is a few seconds late.
    """
    training = Training()
    for step in itertools.count():
        training.step()
        if step == STEPS_BEFORE:
            mark_fault()
            end = time.monotonic() + (14.0 if not is_befallen() else 17.0)
            while time.monotonic() < end:
                torch.randn(128, 128) @ torch.randn(128, 128)


def take_long_steps() -> None:
    """Steps take four seconds, in which nothing is heard of any rank: they wait for simulators elsewhere, once the
    batches at hand are used up.
    """
    training = Training()
    for _ in range(50):
        training.step()
    mark_fault()
    while True:
        training.step(4.0)


CASES = {
    "longer-sequences": lengthen_sequences,
    "leaves-by-agreement": leave_by_agreement,
    "evaluation-apart": evaluate_alone,
    "long-steps": take_long_steps,
}


if __name__ == "__main__":
    start()
    CASES[case()]()
