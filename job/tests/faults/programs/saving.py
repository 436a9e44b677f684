"""Training that saves a checkpoint to storage that turns out to be slow, or does not answer."""

from __future__ import annotations

import io
import os
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from .common import STEPS_BEFORE, folder, is_befallen, mark_fault
from .small_training import Training

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


def save_now_and_then(by: str) -> None:
    training = Training(nn.Sequential(nn.Linear(64, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 1024)))
    for step in training.steps(1):
        if step % SAVE_EVERY == 0:
            if by == "all":
                mark_fault()
                state = {"model": training.model.module.state_dict()}
                dcp.save(state, storage_writer=SlowWriter(folder() / "checkpoint"))
            elif is_befallen():
                mark_fault()
                with SlowFile(folder() / "checkpoint.pt", "wb") as file:
                    torch.save(training.model.state_dict(), file)
                    os.fsync(file.fileno())
            dist.barrier()


_SLOW_SECONDS = 3.0


class Storage(dcp.FileSystemWriter):
    """Slow in all ranks, or without an answer in one."""

    is_hung = False

    def write_data(self, plan: Any, planner: Any) -> Any:
        if self.is_hung:
            mark_fault()
            time.sleep(1000.0)
        time.sleep(_SLOW_SECONDS)
        return super().write_data(plan, planner)


def save_in_background(healthy: str = "") -> None:
    """Saves asynchronously, with a process group of its own, as torch recommends."""
    training = Training()
    group = dist.new_group(group_desc="checkpoint")
    if healthy:
        mark_fault()
    saved = None
    for step in training.steps(1):
        if healthy:
            is_over = torch.tensor(float(saved is None or saved.done()))
            dist.all_reduce(is_over, dist.ReduceOp.MIN)
            is_due = step % STEPS_BEFORE == 0 and bool(is_over)
        else:
            is_due = step == STEPS_BEFORE
        if is_due:
            writer = Storage(folder() / f"checkpoint-{step}")
            writer.is_hung = is_befallen() and not healthy
            state = {"model": training.model.module.state_dict()}
            saved = dcp.async_save(state, storage_writer=writer, process_group=group)
