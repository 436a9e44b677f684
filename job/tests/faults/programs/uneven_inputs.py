"""DDP whose ranks have unequal numbers of batches; a rank runs out of them first, and does what comes next."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from job.tests.faults.programs.common import case, is_befallen, mark_fault, stay_away

SHORT, LONG = 120, 4000


def go_on() -> None:
    name = case()
    if name == "uneven-then-barrier":
        dist.barrier()
    elif name == "uneven-then-evaluation":
        if is_befallen():
            stay_away()
    elif name == "uneven-then-metric":
        dist.all_reduce(torch.zeros(1))


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(128, 128))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(SHORT if is_befallen() else LONG):
        model(torch.randn(8, 128)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.015)
    mark_fault()
    go_on()


if __name__ == "__main__":
    main()
