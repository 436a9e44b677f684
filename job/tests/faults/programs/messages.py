"""Ranks that pass messages: pipelines, by hand and by torch, a chain, and a ring as context parallelism has it."""

from __future__ import annotations

import time
from itertools import count

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from .common import STEPS_BEFORE, befalls, is_befallen, mark_fault, stay_away
from .small_training import after, before, pass_on, steps

MICRO_BATCHES = 4
_FAULT_FORWARD = 150


def pass_through_stages(num_micro_batches: int, seconds: float = 0.0) -> None:
    """A step of this rank's stage: micro-batches go to the last stage, and their gradients come back."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for _ in range(num_micro_batches):
        if rank > 0:
            dist.recv(torch.empty(1024), rank - 1)
        time.sleep(seconds)
        if rank < last:
            dist.send(torch.ones(1024), rank + 1)
    for _ in range(num_micro_batches):
        if rank < last:
            dist.recv(torch.empty(1024), rank + 1)
        time.sleep(seconds)
        if rank > 0:
            dist.send(torch.ones(1024), rank - 1)


def run_pipeline() -> None:
    """One stage has another number of micro-batches configured from some step on."""
    for step in steps():
        pass_through_stages(MICRO_BATCHES + befalls(step))


def run_ring() -> None:
    """One rank sends its block to the rank after the next, once."""
    for step in steps():
        for work in pass_on(torch.ones(1024), torch.empty(1024), after(2) if befalls(step) else after()):
            work.wait()
        dist.all_reduce(torch.ones(256))


def skip_step() -> None:
    """One stage takes a batch for a bad one, and goes on with the next step."""
    for step in steps():
        if not befalls(step):
            pass_through_stages(MICRO_BATCHES)
        dist.all_reduce(torch.ones(256))


def skip_turn() -> None:
    """The block goes round once a step. One rank neither takes nor passes it on once."""
    block = torch.ones(1024)
    for step in steps():
        if befalls(step):
            pass
        elif dist.get_rank() == 0:
            dist.send(block, after())
            dist.recv(block, before())
        else:
            dist.recv(block, before())
            dist.send(block, after())
        dist.all_reduce(torch.ones(256))


def wait_in_chain() -> None:
    """A pipeline by hand: each rank gets from the one before and sends to the next. One rank waits for a lock."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    weights = torch.eye(64)
    for step in steps():
        activations = torch.ones(8, 64)
        if rank > 0:
            dist.recv(activations, rank - 1)
        if step == STEPS_BEFORE and is_befallen():
            stay_away()
        activations = activations @ weights
        if rank < last:
            dist.send(activations, rank + 1)


def be_late_in_pipeline() -> None:
    """One stage of a pipeline takes 0.1 s for a micro-batch where it took 5 ms."""
    for step in count():
        is_late = step >= 2 * STEPS_BEFORE and befalls(step, step)
        pass_through_stages(MICRO_BATCHES, 0.1 if is_late else 0.005)


class Layer(nn.Module):
    """Takes its time, and waits for a lock once."""

    def __init__(self, may_hang: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.may_hang = may_hang
        self.num_forwards = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.num_forwards += 1
        if self.num_forwards == _FAULT_FORWARD and self.may_hang and is_befallen():
            stay_away()
        time.sleep(0.01)
        return torch.relu(self.linear(inputs))


def run_schedule(num_dp: int, healthy: str = "") -> None:
    """torch's own schedule, over four stages, or two stages of two data-parallel ranks each."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // num_dp, num_dp), mesh_dim_names=("pp", "dp"))
    pp, dp = mesh["pp"].get_group(), mesh["dp"].get_group()
    index, last = dist.get_rank(pp), dist.get_world_size(pp) - 1
    layer = Layer(may_hang=not healthy)
    stage = PipelineStage(layer, index, last + 1, torch.device("cpu"), group=pp)
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda output, target: (output - target).pow(2).mean())
    optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
    if healthy:
        mark_fault()
    for _ in count():
        batch = torch.randn(4 * MICRO_BATCHES, 32)
        schedule.step(*([batch] if index == 0 else []), **({"target": batch} if index == last else {}))
        if num_dp > 1:
            for parameter in layer.parameters():
                dist.all_reduce(parameter.grad, group=dp)
        optimizer.step()
        optimizer.zero_grad()
