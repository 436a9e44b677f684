"""Training with less common operations, or with more than one thing that goes wrong at a time."""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from .common import (
    STEPS_BEFORE,
    STEPS_BEFORE_SLOW,
    befallen_rank,
    befalls,
    chosen,
    folder,
    gets_slow,
    is_befallen,
    mark_fault,
    wait_for_server,
)
from .small_training import Training, start, steps


def run_out_of_time() -> None:
    """One rank waits for a server; the others give up after 4 s, before the hang gate."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=4))
    Training().train(wait_for_server)


def restart_in_place() -> None:
    """One rank replaces its program by another one, as an updater does: the process lives, the rank does not."""
    start()
    Training().train(lambda: os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"]))


def gather_metrics() -> None:
    """Rank 0 gathers metrics after each step; one rank does not come to it, and the others are past it."""
    start()
    training = Training()
    rank = dist.get_rank()
    for step in training.steps():
        if befalls(step):
            wait_for_server()
        metrics = [torch.empty(16) for _ in range(dist.get_world_size())] if rank == 0 else None
        dist.gather(torch.ones(16), metrics, dst=0)


def save_by_some() -> None:
    """One rank does not take part in a distributed checkpoint, and goes on to the next step."""
    start()
    training = Training(nn.Linear(64, 8))
    for step in training.steps(1):
        if step == STEPS_BEFORE:
            if is_befallen():
                mark_fault()
            else:
                dcp.save({"model": training.model.module.state_dict()}, checkpoint_id=folder() / "checkpoint")


def route_tokens() -> None:
    """Mixture of experts: one rank's router sends another number of tokens than it has announced."""
    start()
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in steps():
        counts = torch.tensor([16 + (rank + peer + step) % 3 for peer in range(size)])
        expected = torch.empty_like(counts)
        dist.all_to_all_single(expected, counts)
        sent = counts.tolist()
        if befalls(step):
            sent[(rank + 1) % size] += 8
        received = torch.empty(int(expected.sum()), 32)
        dist.all_to_all_single(received, torch.ones(sum(sent), 32), expected.tolist(), sent)
        dist.all_reduce(torch.ones(256))


def be_late_in_pipeline() -> None:
    """One stage of a pipeline takes 0.1 s for a micro-batch where it took 5 ms."""
    start()
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for step in itertools.count():
        seconds = 0.005
        if step >= 2 * STEPS_BEFORE and is_befallen():
            mark_fault()
            seconds = 0.1
        for _ in range(4):
            if rank > 0:
                dist.recv(torch.empty(1024), rank - 1)
            time.sleep(seconds)
            if rank < last:
                dist.send(torch.ones(1024), rank + 1)
        for _ in range(4):
            if rank < last:
                dist.recv(torch.empty(1024), rank + 1)
            time.sleep(seconds)
            if rank > 0:
                dist.send(torch.ones(1024), rank - 1)


def be_late_as_root() -> None:
    """One rank reads batches for all and broadcasts them; its storage gets slow."""
    start()
    source = befallen_rank()
    for step in steps():
        if gets_slow(step):
            time.sleep(0.2)
        dist.broadcast(torch.ones(4096), src=source)


def be_late_by_two() -> None:
    """Two ranks share a node that got slow: both take 0.2 s longer for each step."""
    start()
    training = Training()
    late = (befallen_rank() + 1) % dist.get_world_size()
    for step in itertools.count():
        if step >= STEPS_BEFORE_SLOW and (is_befallen() or dist.get_rank() == late):
            mark_fault()
            time.sleep(0.2)
        training.step()


def vary_lengths() -> None:
    """Nothing is wrong: sequences differ, so that in every step another rank is late, now and then by a lot."""
    start()
    training = Training()
    lengths = random.Random(dist.get_rank())
    for step in itertools.count():
        if step == STEPS_BEFORE:
            mark_fault()
        training.step(min(0.8, lengths.expovariate(20.0)))


if __name__ == "__main__":
    chosen(globals())()
