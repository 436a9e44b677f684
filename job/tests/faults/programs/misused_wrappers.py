"""Training with what torch.distributed wraps around models, optimizers and tensors, which one rank uses otherwise."""

from __future__ import annotations

import itertools
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard

from .common import case, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, Training, start


def validate_alone() -> None:
    """One rank validates with the model in DDP, whose forward pass broadcasts the buffers; the others wait for it."""
    training = Training(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)))
    for step in itertools.count(1):
        training.step()
        if step == STEPS_BEFORE:
            if is_befallen():
                mark_fault()
                training.model.eval()
                with torch.no_grad():
                    training.loss()
                training.model.train()
            dist.barrier()


def consolidate_alone() -> None:
    """One rank asks for the whole state of a ZeRO optimizer, to save it, and the others do not."""
    training = Training()
    optimizer = ZeroRedundancyOptimizer(
        training.model.parameters(), optimizer_class=torch.optim.SGD, lr=1e-3, momentum=0.9
    )
    for step in itertools.count(1):
        time.sleep(0.02)
        optimizer.zero_grad()
        training.loss().backward()
        optimizer.step()
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            optimizer.consolidate_state_dict(to=dist.get_rank())


def accumulate_alone() -> None:
    """FSDP2: one rank takes a micro-batch more before it reduces the gradients."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    assert isinstance(model, FSDPModule)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in itertools.count():
        time.sleep(0.02)
        optimizer.zero_grad()
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            model.set_requires_gradient_sync(False)
            model(torch.randn(4, 64)).square().mean().backward()
            model.set_requires_gradient_sync(True)
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()


def gather_along_other_axis() -> None:
    """2 x 2 mesh: a rank gathers an activation along dp in place of tp."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    activation = DTensor.from_local(torch.ones(16, 16), mesh, [Shard(0), Shard(1)])
    for step in itertools.count():
        time.sleep(0.02)
        placements = [Shard(0), Replicate()]
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            placements = [Replicate(), Shard(1)]
        activation.redistribute(placements=placements).to_local().sum().item()
        dist.all_reduce(torch.ones(256), group=mesh["dp"].get_group())


def join_without_one() -> None:
    """The ranks have unequal numbers of batches in the second epoch and train under join(), which one rank leaves
    out.
    """
    training = Training()
    for _ in range(STEPS_BEFORE):
        training.step()
    if is_befallen():
        mark_fault()
        while True:
            training.step()
    with training.model.join():
        while True:
            training.step()


CASES = {
    "validation-of-one": validate_alone,
    "zero-consolidate": consolidate_alone,
    "fsdp-no-sync": accumulate_alone,
    "wrong-mesh-axis": gather_along_other_axis,
    "join-of-some": join_without_one,
}


if __name__ == "__main__":
    start()
    CASES[case()]()
