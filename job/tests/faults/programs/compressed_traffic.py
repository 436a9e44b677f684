"""Training whose messages are compressed. The setting `attach` says in which way; commands are those of job.py."""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import count
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from job.tests.faults.job import Job
from job.tests.faults.programs.common import folder
from tensorwire.torch import traffic
from tests.support.sharded_models import Case, Model, loss_of, optimizer_of, sharded, train_step

if TYPE_CHECKING:
    from collections.abc import Callable

_BACKEND = "tensorwire-exact"
_ROWS = 8  # of each rank for each other one


class CompressedJob(Job):
    def __init__(self) -> None:
        super().__init__()
        self.stops_inside = self.leaves_out = False
        self.communicate: Callable[[], None] = getattr(self, self.settings["attach"])()

    def reduce_gradients(self) -> None:
        self.communicate()

    # The ways to attach. Each gives what to do in a step.

    def fsdp(self, gradients: traffic.Exact | None = None) -> Callable[[], None]:
        case = Case(gradients=torch.bfloat16)
        model = sharded(case)
        traffic.attach_fsdp(model, gradients=gradients)
        optimizer, steps = optimizer_of(model, case), count()
        return lambda: train_step(model, optimizer, case, next(steps))

    def fsdp_gradients(self) -> Callable[[], None]:
        return self.fsdp(traffic.Exact())

    def ddp(self) -> Callable[[], None]:
        model = DistributedDataParallel(Model().bfloat16())
        traffic.attach_ddp(model)
        optimizer, steps = optimizer_of(model, Case()), count()

        def step() -> None:
            loss_of(model, next(steps)).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def backend(self) -> Callable[[], None]:
        traffic.register_backend(_BACKEND, self.codec, minimum=0)
        group = dist.new_group(backend=_BACKEND)
        own = torch.randn(256).bfloat16()

        def step() -> None:
            dist.all_reduce(own.clone(), group=group)
            dist.all_gather([torch.empty_like(own) for _ in range(dist.get_world_size())], own, group=group)

        return step

    def all_to_all(self) -> Callable[[], None]:
        size = dist.get_world_size()
        rows = torch.randn(_ROWS * size, 16).bfloat16().requires_grad_()

        def step() -> None:
            if self.leaves_out:
                self.leaves_out = False
            else:
                traffic.all_to_all(rows, [_ROWS] * size)[0].sum().backward()
            dist.all_reduce(torch.zeros(1))  # of what the ranks report

        return step

    def codec(self, name: str, number: int) -> traffic.Exact:
        """Asked in the thread of the exchange, between collectives."""
        if self.stops_inside:
            self.stops_inside = False
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(1.0)  # another thread may take the signal, and this one would enter the next collective
        return traffic.Exact()

    # Actions.

    def oversleep(self) -> None:
        while not (folder() / "alarm").exists():
            time.sleep(0.05)

    def finish(self) -> None:
        dist.destroy_process_group()
        sys.exit()

    def stop_in_exchange(self) -> None:
        self.stops_inside = True

    def leave_out(self) -> None:
        self.leaves_out = True


if __name__ == "__main__":
    torch.set_num_threads(1)
    CompressedJob().train()
