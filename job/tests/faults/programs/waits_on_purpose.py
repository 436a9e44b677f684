"""Jobs with nothing wrong, in which an operation is open for long and training goes on."""

from __future__ import annotations

import itertools
import os
import time

import torch
import torch.distributed as dist

from .common import case, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, Training, start

_SECONDS = 9.0  # longer than the hang gate


def vote_early() -> None:
    """One rank votes to stop, without waiting; the others vote seconds later. All train on meanwhile."""
    votes = dist.new_group(group_desc="votes")
    training = Training()
    end = float("inf")
    work = None
    for step in itertools.count():
        training.step()
        if step == STEPS_BEFORE:
            if is_befallen():
                mark_fault()
            end = time.monotonic() + (0.0 if is_befallen() else _SECONDS)
        if work is None and time.monotonic() >= end:
            work = dist.all_reduce(torch.ones(1), group=votes, async_op=True)
        if work is not None and work.is_completed():
            work, end = None, float("inf")


def evaluate_for_trainers() -> None:
    """Three ranks train. The fourth evaluates what they broadcast to it now and then, and waits for the next."""
    rank, evaluator = dist.get_rank(), int(os.environ["TW_FAULTS_RANK"])
    trainers = [each for each in range(dist.get_world_size()) if each != evaluator]
    group = dist.new_group(trainers, group_desc="trainers")
    weights = torch.ones(4096)
    if rank == evaluator:
        while True:
            dist.broadcast(weights, src=trainers[0])
            mark_fault()
            time.sleep(0.5)
    for step in itertools.count():
        if step % (2 * STEPS_BEFORE) == 0:
            dist.broadcast(weights, src=trainers[0])
        time.sleep(_SECONDS / (2 * STEPS_BEFORE))
        dist.all_reduce(torch.ones(256), group=group)


def join_early() -> None:
    """Unequal numbers of batches, under join() as they should be: one rank is through long before the others."""
    training = Training()
    with training.model.join():
        for step in itertools.count():
            if step == STEPS_BEFORE and is_befallen():
                mark_fault()
                break
            training.step()


CASES = {
    "early-vote": vote_early,
    "waiting-evaluator": evaluate_for_trainers,
    "joined": join_early,
}


if __name__ == "__main__":
    start()
    CASES[case()]()
