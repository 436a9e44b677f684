"""Training with what torch.distributed wraps around models, optimizers and tensors, which one rank uses otherwise."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard

from .common import STEPS_BEFORE, befalls, is_befallen, mark_fault
from .small_training import Training, sharded, steps


def validate_alone() -> None:
    """One rank validates with the model in DDP, whose forward pass broadcasts the buffers; the others wait for it."""
    training = Training(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)))

    def validate() -> None:
        training.model.eval()
        with torch.no_grad():
            training.loss()
        training.model.train()

    training.train(validate, dist.barrier)


def consolidate_alone() -> None:
    """One rank asks for the whole state of a ZeRO optimizer, to save it, and the others do not."""
    training = Training()
    training.optimizer = optimizer = ZeroRedundancyOptimizer(
        training.model.parameters(), optimizer_class=torch.optim.SGD, lr=1e-3, momentum=0.9
    )
    training.train(lambda: optimizer.consolidate_state_dict(to=dist.get_rank()))


def accumulate_alone() -> None:
    """FSDP2: one rank takes a micro-batch more before it reduces the gradients."""
    training = Training(wrap=sharded)

    def accumulate() -> None:
        training.model.set_requires_gradient_sync(False)
        training.loss().backward()
        training.model.set_requires_gradient_sync(True)

    training.train(accumulate)


def gather_along_other_axis() -> None:
    """2 x 2 mesh: a rank gathers an activation along dp in place of tp."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    activation = DTensor.from_local(torch.ones(16, 16), mesh, [Shard(0), Shard(1)])
    for step in steps():
        placements = [Replicate(), Shard(1)] if befalls(step) else [Shard(0), Replicate()]
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


def log_whole_parameter() -> None:
    """FSDP2: one rank looks at a whole parameter."""
    training = Training(wrap=sharded)
    for step in training.steps():
        if befalls(step):  # as with `if loss > threshold`
            print("weights", next(training.model.parameters()).full_tensor().norm())
        dist.all_reduce(torch.ones(()))  # the loss
