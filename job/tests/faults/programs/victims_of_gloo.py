"""Training in which a call of one rank has gloo abort other ranks, which have done nothing wrong."""

from __future__ import annotations

import itertools
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from .common import case, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, start

_TOKENS = 32  # for each expert
_WIDTH = 16


def route_too_many() -> None:
    """Each rank sends as many tokens to every expert. One rank's router sends one token more from some step on."""
    size = dist.get_world_size()
    for step in itertools.count():
        time.sleep(0.02)
        sent = [_TOKENS] * size
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            sent = [_TOKENS + 1] * size
        tokens = torch.ones(sum(sent), _WIDTH)
        dist.all_to_all_single(torch.empty(_TOKENS * size, _WIDTH), tokens, [_TOKENS] * size, sent)
        dist.all_reduce(torch.ones(1))  # the loss


class Experts(nn.Module):
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
    model = DistributedDataParallel(Experts(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in itertools.count():
        time.sleep(0.02)
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            model.module.has_image = False
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        model.module.has_image = True


def clip_alone() -> None:
    """Tensor parallel layers; one rank clips, with the norm over its tp group, as its own configuration has it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh["tp"].get_group(), mesh["dp"].get_group()
    for step in itertools.count():
        for _ in range(4):
            time.sleep(0.005)
            dist.all_reduce(torch.ones(512), group=tp)
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            dist.all_reduce(torch.ones(1), group=tp)
        dist.all_reduce(torch.ones(4096), group=dp)


CASES = {"expert-splits": route_too_many, "branch-with-collective": leave_out_branch, "clip-of-one": clip_alone}


if __name__ == "__main__":
    start()
    CASES[case()]()
