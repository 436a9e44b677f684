"""FSDP2, and one rank that looks at a whole parameter."""

from __future__ import annotations

import itertools
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from .common import is_befallen, mark_fault
from .small_training import STEPS_BEFORE, start


def main() -> None:
    start()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in itertools.count():
        time.sleep(0.02)
        optimizer.zero_grad()
        loss = model(torch.randn(4, 64)).square().mean()
        loss.backward()
        optimizer.step()
        if step == STEPS_BEFORE and is_befallen():  # as with `if loss > threshold`
            mark_fault()
            print("weights", next(model.parameters()).full_tensor().norm())
        dist.all_reduce(loss.detach())


if __name__ == "__main__":
    main()
