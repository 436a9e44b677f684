"""Training in which one rank makes a call more, a call less, or a call of another size, after public reports."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .common import befalls, is_befallen, mark_fault
from .small_training import Training, run, sharded, steps

_EPOCH = 20  # steps


def save_behind_guard() -> None:
    """alan-turing-institute/autocast#386: one rank saves a checkpoint at the end of an epoch, behind a guard that lets
    it alone in. The save ends in a barrier, which pairs with the barrier that all ranks come to after it.
    """
    for step in Training().steps(1):
        if step % _EPOCH == 0:
            if befalls(step, 4 * _EPOCH):
                dist.barrier()  # of the save
            dist.barrier()


def compute_own_capacity() -> None:
    """deepspeedai/DeepSpeed#6809: without dropped tokens, each rank computes the capacity of the experts from its own
    batch, and one rank sends more to each expert than the others do.
    """
    router, expert = nn.Linear(64, 64), nn.Linear(64, 64)
    for step in steps():
        capacity = 5 if befalls(step) else 4  # tokens for each expert; an expert on each rank
        with torch.no_grad():
            tokens = router(torch.randn(dist.get_world_size() * capacity, 64))
            dispatched = torch.empty_like(tokens)
            dist.all_to_all_single(dispatched, tokens)
            combined = torch.empty_like(tokens)
            dist.all_to_all_single(combined, expert(dispatched))
        dist.all_reduce(combined.square().mean())


def save_without_state() -> None:
    """NVIDIA/Megatron-LM#4910: before a save, the ranks gather what each holds of an entry of the optimizer's state,
    entry by entry. One rank has no state for one of the entries, and leaves out its gather.
    """
    for step in Training().steps(1):
        if step % _EPOCH == 0:
            entries = ["exp_avg", "exp_avg_sq", "master"]
            if befalls(step, 4 * _EPOCH):
                entries.remove("exp_avg_sq")
            for entry in entries:
                pieces: list[Any] = [None] * dist.get_world_size()
                dist.all_gather_object(pieces, {"entry": entry, "offset": 64 * dist.get_rank()})
            dist.all_reduce(torch.ones(1))  # the number of bytes, for the log


def go_on_after_error() -> None:
    """EvolvingLMMs-Lab/lmms-eval#1304: the evaluation of a task fails on one rank, which logs the error and goes on to
    the next task. The others gather their answers.
    """
    for number in itertools.count():
        task: list[Any] = [{"number": number}] if dist.get_rank() == 0 else [None]
        dist.broadcast_object_list(task, src=0)
        try:
            answers = []
            for batch in range(10):
                time.sleep(0.02)
                if number == 8 and batch == 5 and is_befallen():
                    mark_fault()
                    raise KeyError("image")
                answers.append(batch)
            gathered: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
            dist.gather_object(answers, gathered, dst=0)
        except KeyError as error:
            print(f"task {number} failed: {error!r}", flush=True)


class Tagger(nn.Module):
    """A trunk, and a head that is called for each entity that the trunk finds."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, batch: torch.Tensor, num_entities: int) -> torch.Tensor:
        features = self.trunk(batch)
        return torch.stack([self.head(features) for _ in range(num_entities)]).square().mean()


def call_head_thrice() -> None:
    """deepspeedai/DeepSpeed#7998: parameters are sharded, and each call of the head gathers its own. The batch of one
    rank has three entities, those of the others have one.
    """
    model = Tagger()
    sharded(model, model.trunk, model.head)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in steps():
        num_entities = 3 if befalls(step) else 1
        optimizer.zero_grad()
        model(torch.randn(4, 64), num_entities).backward()
        optimizer.step()


if __name__ == "__main__":
    run(globals())
