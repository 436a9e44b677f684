"""torch's own pipeline schedule, over four stages, or two stages of two data-parallel ranks each."""

from __future__ import annotations

import time
from itertools import count

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from .common import case, is_befallen, mark_fault, stay_away

FAULT_FORWARD = 150
MICROBATCHES = 4


class Layer(nn.Module):
    """Takes its time, and waits for a lock once."""

    def __init__(self, may_hang: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.may_hang = may_hang
        self.num_forwards = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.num_forwards += 1
        if self.num_forwards == FAULT_FORWARD and self.may_hang and is_befallen():
            stay_away()
        time.sleep(0.01)
        return torch.relu(self.linear(inputs))


def main() -> None:
    dist.init_process_group("gloo")
    num_dp = 2 if "dp" in case() else 1
    mesh = init_device_mesh("cpu", (dist.get_world_size() // num_dp, num_dp), mesh_dim_names=("pp", "dp"))
    pp, dp = mesh["pp"].get_group(), mesh["dp"].get_group()
    index, last = dist.get_rank(pp), dist.get_world_size(pp) - 1
    layer = Layer(may_hang="healthy" not in case())
    stage = PipelineStage(layer, index, last + 1, torch.device("cpu"), group=pp)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=lambda output, target: (output - target).pow(2).mean())
    optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
    if not layer.may_hang:
        mark_fault()
    for _ in count():
        batch = torch.randn(4 * MICROBATCHES, 32)
        schedule.step(*([batch] if index == 0 else []), **({"target": batch} if index == last else {}))
        if num_dp > 1:
            for parameter in layer.parameters():
                dist.all_reduce(parameter.grad, group=dp)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
