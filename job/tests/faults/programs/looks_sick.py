"""Jobs with nothing wrong: each looks for a while like one that has a fault, or has an operation open for long."""

from __future__ import annotations

import itertools
import os
import random
import time

import torch
import torch.distributed as dist

from .common import STEPS_BEFORE, STEPS_BEFORE_SLOW, befallen_rank, befalls, is_befallen, mark_fault
from .small_training import Training

_SECONDS = 9.0  # longer than the hang gate


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
    new_rank = rank - (rank > befallen_rank())
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=new_rank, world_size=3)
    training = Training()
    while True:
        training.step()


def evaluate_alone() -> None:
    """All ranks evaluate on their own share of the data: 14 s of compute without a collective, then training goes on,
    and one of them is a few seconds late.
    """
    for step in Training().steps():
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


def vote_early() -> None:
    """One rank votes to stop, without waiting; the others vote seconds later. All train on meanwhile."""
    votes = dist.new_group(group_desc="votes")
    training = Training()
    end = float("inf")
    work = None
    for step in training.steps():
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
    rank, evaluator = dist.get_rank(), befallen_rank()
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
            if befalls(step):
                break
            training.step()


def vary_lengths() -> None:
    """Nothing is wrong: sequences differ, so that in every step another rank is late, now and then by a lot."""
    training = Training()
    lengths = random.Random(dist.get_rank())
    for step in itertools.count():
        if step == STEPS_BEFORE:
            mark_fault()
        training.step(min(0.8, lengths.expovariate(20.0)))
