"""DDP in which nothing is wrong, and ranks wait for each other now and then for reasons of their own."""

from __future__ import annotations

import gc
import random
import time
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from .common import case, folder, is_befallen, mark_fault


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.ones(64)


class SlowWriter(dcp.FileSystemWriter):
    """To storage that takes its time to say that all is written."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        time.sleep(6.0)
        return super().write_data(plan, planner)


def compute(seconds: float) -> None:
    """Uses the CPU, as a large model does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.randn(64, 64) @ torch.randn(64, 64)


def build() -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    return torch.compile(model) if case() == "healthy-compile" else model


def before_step(step: int, model: DistributedDataParallel) -> None:
    """What this kind of job does between its steps."""
    name = case()
    if name == "healthy-checkpoint-of-one" and step % 200 == 199:
        if is_befallen():
            torch.save(model.state_dict(), folder() / "checkpoint.pt")
            time.sleep(2.5)  # the storage
        dist.barrier()
    elif name == "healthy-checkpoint-of-all" and step % 200 == 199:
        writer = SlowWriter(folder() / f"checkpoint-{step}")
        dcp.save({"model": model.module.state_dict()}, storage_writer=writer)
    elif name == "healthy-evaluation-of-one" and step % 200 == 199:
        if is_befallen():
            compute(2.5)
        dist.barrier()
    elif name == "healthy-uneven":
        time.sleep(random.uniform(0.0, 0.015) + 0.008 * is_befallen())
    elif name == "healthy-collects-garbage" and step % 50 == 0:
        gc.collect()
    elif name == "healthy-long-steps":
        compute(6.0)  # longer than the gate of a hang


def batches() -> DataLoader[torch.Tensor]:
    return DataLoader(Samples(), batch_size=4, num_workers=1)


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    mark_fault()
    steps = count()
    while True:
        for batch in batches() if case() == "healthy-loader" else [torch.ones(4, 64)] * 100:
            before_step(next(steps), model)
            accumulates = case() == "healthy-accumulation"
            for micro in range(8 if accumulates else 1):
                if accumulates and micro < 7:
                    with model.no_sync():
                        model(batch).sum().backward()
                    time.sleep(0.1)
                else:
                    model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)


if __name__ == "__main__":
    main()
