"""DDP of which a rank leaves: by the ways in which a script ends, or does not quite end."""

from __future__ import annotations

import os
import sys
import threading
import time
from itertools import count

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from job.tests.faults.programs.common import case, is_befallen, mark_fault, stay_away

FAULT_STEP = 120


def leave() -> None:
    name = case()
    if name == "sys-exit-0":
        mark_fault()
        sys.exit(0)
    if name == "os-exit-0":
        mark_fault()
        os._exit(0)
    if name == "ctrl-c-hang":
        stay_away()
    mark_fault()
    raise ValueError("the loss of this batch is NaN")


def main() -> None:
    dist.init_process_group("gloo")
    if case() == "exception-and-a-thread":
        threading.Thread(target=threading.Event().wait).start()  # such as a logger's, which is not a daemon
    model = DistributedDataParallel(nn.Linear(128, 128))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    steps = count()

    def check_gradient(gradient: torch.Tensor) -> None:
        if next(steps) == FAULT_STEP and is_befallen():
            if case() == "ctrl-c-healthy":
                mark_fault()
            else:
                leave()

    model.module.weight.register_hook(check_gradient)
    while True:
        model(torch.randn(8, 128)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.015)


if __name__ == "__main__":
    main()
