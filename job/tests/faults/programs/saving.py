"""DDP that saves a checkpoint to storage that turns out to be slow."""

from __future__ import annotations

import io
import os
import time
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from job.tests.faults.programs.common import case, folder, is_befallen, mark_fault

SAVE_EVERY = 120
SLOW_SECONDS = 40.0
PIECE = 64 * 1024


class SlowFile(io.FileIO):
    """On storage that takes a while for each piece."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for first in range(0, len(view), PIECE):
            super().write(view[first : first + PIECE])
            time.sleep(SLOW_SECONDS / 128)
        return len(view)


class SlowWriter(dcp.FileSystemWriter):
    """The same, of a distributed checkpoint."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        if is_befallen():
            with SlowFile(folder() / "slow", "wb") as file:
                file.write(bytes(128 * PIECE))
        return super().write_data(plan, planner)


def save(model: nn.Module) -> None:
    if case() == "save-of-all-ranks":
        mark_fault()
        dcp.save({"model": model.module.state_dict()}, storage_writer=SlowWriter(folder() / "checkpoint"))
    elif is_befallen():
        mark_fault()
        with SlowFile(folder() / "checkpoint.pt", "wb") as file:
            torch.save(model.state_dict(), file)
            os.fsync(file.fileno())
    dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in count(1):
        model(torch.randn(1, 1024)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVE_EVERY == 0:
            save(model)


if __name__ == "__main__":
    main()
