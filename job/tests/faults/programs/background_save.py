"""Training that saves asynchronously, with a process group of its own, as torch recommends."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from .common import case, folder, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, Training, start

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


def main() -> None:
    start()
    training = Training()
    group = dist.new_group(group_desc="checkpoint")
    is_healthy = case().startswith("healthy")
    if is_healthy:
        mark_fault()
    saved = None
    for step in itertools.count(1):
        training.step()
        if is_healthy:
            is_over = torch.tensor(float(saved is None or saved.done()))
            dist.all_reduce(is_over, dist.ReduceOp.MIN)
            is_due = step % STEPS_BEFORE == 0 and bool(is_over)
        else:
            is_due = step == STEPS_BEFORE
        if is_due:
            writer = Storage(folder() / f"checkpoint-{step}")
            writer.is_hung = not is_healthy and is_befallen()
            state = {"model": training.model.module.state_dict()}
            saved = dcp.async_save(state, storage_writer=writer, process_group=group)


if __name__ == "__main__":
    main()
