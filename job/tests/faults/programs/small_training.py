"""A small model in DDP, trained step by step, and what the programs with faults share."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .common import is_befallen, mark_fault

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS_BEFORE = 70  # that a job trains well: a second and a half, and more
STEPS_BEFORE_SLOW = 240  # where the fault makes it slow: six seconds and more
_COMPUTE_SECONDS = 0.02
_TIMEOUT = timedelta(minutes=30)  # longer than anybody looks on
_PR_SET_PDEATHSIG = 1


def start() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=_TIMEOUT)


def start_with_hosted_store() -> int:
    """As `start`, but a child of the befallen rank hosts the store. Gives that process; 0 in other ranks."""
    torch.set_num_threads(1)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    host = os.fork() if is_befallen() else 0
    if is_befallen() and host == 0:
        die_with_parent()
        _store = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)
        while True:
            signal.pause()
    store = dist.TCPStore(address, port, is_master=False, timeout=_TIMEOUT)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return host


class Training:
    """Steps of a perceptron in DDP: compute, asleep for the most part, and the reduction of the gradients."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = DistributedDataParallel(model or nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def loss(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.randn(4, 64)).square().mean()
        return loss

    def step(self, compute_seconds: float = _COMPUTE_SECONDS) -> None:
        time.sleep(compute_seconds)
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def train(self, fault: Callable[[], object], then: Callable[[], object] = lambda: None) -> None:
        """Take steps for ever. After a while the fault befalls its rank, and then all ranks do something else once."""
        for step in itertools.count():
            self.step()
            if step == STEPS_BEFORE:
                if is_befallen():
                    mark_fault()
                    fault()
                then()


def die_with_parent() -> None:
    """In a child: whoever ends the rank ends it too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
