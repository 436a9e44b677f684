"""Training in which one rank calls other collectives than the rest, or with other tensors; gloo may abort for it."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .common import STEPS_BEFORE, befallen_rank, befalls, folder, is_befallen, mark_fault, stay_away, wait_for_server
from .small_training import Training, before, mesh_groups, steps


def gather_objects_by_some() -> None:
    """Every rank gathers the messages of its peers, but one has another interval configured."""
    for step in Training().steps(1):
        interval = STEPS_BEFORE + 30 if is_befallen() else STEPS_BEFORE
        if not befalls(step) and step % interval == 0:
            messages: list[str | None] = [None] * dist.get_world_size()
            dist.all_gather_object(messages, f"step {step}: loss is finite")


def destroy_early() -> None:
    """One rank's early stopping ends its process group; it then uploads its logs, and the others train on."""
    for step in Training().steps():
        if befalls(step):
            dist.destroy_process_group()
            wait_for_server()


def skip_synchronisation() -> None:
    """Gradients are accumulated over two micro-batches; one rank skips a bad one, and comes to the end of the epoch
    with one synchronisation less.
    """
    training = Training(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)))
    micro_batches = 2 * STEPS_BEFORE
    accumulated = 0
    for micro_batch in range(micro_batches):
        if befalls(micro_batch, micro_batches - 5):
            continue  # its loss would be NaN
        accumulated += 1
        if accumulated % 2 == 0:
            training.step()
        else:
            with training.model.no_sync():
                training.loss().backward()
    dist.barrier()


def skip_branch() -> None:
    """A batch without images leaves a branch of the model unused on one rank."""
    training = Training(Branches())
    training.train(partial(setattr, training.model.module, "has_images", False))


class Branches(nn.Module):
    has_images = True

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.Linear(64, 8)
        self.images = nn.Linear(64, 8)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.text(batch)
        return output + self.images(batch) if self.has_images else output


def clean_up_with_barrier() -> None:
    """One rank fails, and cleans up with a barrier before the exception gets out."""
    training = Training()
    try:
        for step in training.steps():
            if befalls(step):
                raise ValueError("the loss is NaN")
    finally:
        dist.barrier()
        dist.destroy_process_group()


def miss_monitored_barrier() -> None:
    """One rank waits for a server while the others wait in a monitored barrier."""
    for step in Training().steps(1):
        if step % 20 == 0:
            if step >= STEPS_BEFORE and is_befallen():
                mark_fault()
                wait_for_server()
            dist.monitored_barrier(timeout=timedelta(minutes=30))


_TOKENS = 32  # for each expert
_WIDTH = 16


def route_too_many() -> None:
    """Each rank sends as many tokens to every expert. One rank's router sends one token more from some step on."""
    size = dist.get_world_size()
    for step in steps():
        sent = [_TOKENS + 1] * size if befalls(step) else [_TOKENS] * size
        tokens = torch.ones(sum(sent), _WIDTH)
        dist.all_to_all_single(torch.empty(_TOKENS * size, _WIDTH), tokens, [_TOKENS] * size, sent)
        dist.all_reduce(torch.ones(1))  # the loss


class Balanced(nn.Module):
    """A branch in which ranks share the load of its experts."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = nn.Linear(64, 8), nn.Linear(64, 8)
        self.has_image = True

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.text(batch)
        if self.has_image:
            load = torch.distributed.nn.functional.all_reduce(torch.ones(8))
            output = output + self.image(batch) * load
        return output


def leave_out_branch() -> None:
    """A batch of one rank has no image. DDP allows for unused parameters, but the branch has a collective."""
    training = Training(Balanced(), partial(DistributedDataParallel, find_unused_parameters=True))
    for step in training.steps():
        training.model.module.has_image = not befalls(step)


def clip_alone() -> None:
    """Tensor parallel layers; one rank clips, with the norm over its tp group, as its own configuration has it."""
    dp, tp = mesh_groups("dp", "tp")
    for step in itertools.count():
        for _ in range(4):
            time.sleep(0.005)
            dist.all_reduce(torch.ones(512), group=tp)
        if befalls(step):
            dist.all_reduce(torch.ones(1), group=tp)
        dist.all_reduce(torch.ones(4096), group=dp)


def run_out_of_batches(then: str = "end") -> None:
    """Ranks have unequal numbers of batches; one runs out of them first, and does what comes next."""
    training = Training()
    for _ in range(120 if is_befallen() else 4000):
        training.step()
    mark_fault()
    if then == "barrier":
        dist.barrier()
    elif then == "evaluate" and is_befallen():
        stay_away()
    elif then == "reduce":
        dist.all_reduce(torch.zeros(1))


def gather_metrics() -> None:
    """Rank 0 gathers metrics after each step; one rank does not come to it, and the others are past it."""
    rank = dist.get_rank()
    for step in Training().steps():
        if befalls(step):
            wait_for_server()
        metrics = [torch.empty(16) for _ in range(dist.get_world_size())] if rank == 0 else None
        dist.gather(torch.ones(16), metrics, dst=0)


def save_by_some() -> None:
    """One rank does not take part in a distributed checkpoint, and goes on to the next step."""
    training = Training(nn.Linear(64, 8))

    def save() -> None:
        if not is_befallen():
            dcp.save({"model": training.model.module.state_dict()}, checkpoint_id=folder() / "checkpoint")

    training.train(then=save)


def route_tokens() -> None:
    """Mixture of experts: one rank's router sends another number of tokens than it has announced."""
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


def reduce_layers() -> None:
    """A rank skips the gradient of a layer, and is a layer ahead from then on."""
    for step in steps():
        for layer, size in enumerate((4096, 1024, 256, 64)):
            if layer != 1 or not befalls(step):
                dist.all_reduce(torch.ones(size))


def reduce_in_half() -> None:
    """A rank reduces in another dtype, of fewer bytes."""
    for step in steps():
        dist.all_reduce(torch.ones(1024, dtype=torch.bfloat16 if befalls(step) else torch.float32))


def gather_in_double() -> None:
    """A rank gathers in another dtype from a step on, in its tp group."""
    _, tp = mesh_groups("dp", "tp")
    for step in steps():
        gather(step, torch.float64, tp)


def gather_integers() -> None:
    """The same in the group of all, with a dtype of as many bytes; now and then one rank is late for it."""
    for step in steps():
        if step % 100 == 99 and before() == befallen_rank():
            time.sleep(1.5)  # an evaluation, which the others wait for
        gather(step, torch.int32)


def gather(step: int, other: torch.dtype, group: dist.ProcessGroup | None = None) -> None:
    dtype = other if step >= STEPS_BEFORE and befalls(step, step) else torch.float32
    mine = torch.ones(256, dtype=dtype)
    dist.all_gather([torch.empty_like(mine) for _ in range(dist.get_world_size(group))], mine, group=group)
