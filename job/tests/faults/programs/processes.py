"""Training in which a rank or one of its helpers ends, fails unseen or compiles again and again."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from .common import STEPS_BEFORE, STEPS_BEFORE_SLOW, befalls, folder, gets_slow, is_befallen, mark_fault, stay_away
from .small_training import Training, steps

if TYPE_CHECKING:
    from collections.abc import Callable


def leave(how: str) -> None:
    """A hook of the backward pass ends the script of one rank in one of these ways, or does not quite end it."""
    training = Training()
    numbers = count()

    def check_gradient(gradient: torch.Tensor) -> None:
        if next(numbers) == STEPS_BEFORE and is_befallen():
            mark_fault()
            _WAYS[how]()

    training.model.module[0].weight.register_hook(check_gradient)
    while True:
        training.step()


def fail() -> None:
    raise ValueError("the loss of this batch is NaN")


def fail_beside_thread() -> None:
    threading.Thread(target=threading.Event().wait).start()  # such as a logger's, which is not a daemon
    fail()


_WAYS: dict[str, Callable[[], object]] = {
    "exit": lambda: sys.exit(0),
    "exit-at-once": lambda: os._exit(0),
    "fail": fail,
    "fail-beside-thread": fail_beside_thread,
    "wait": stay_away,
    "go-on": lambda: None,
}


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __init__(self, fault: Callable[[], object]) -> None:
        self.fault = fault

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2 * STEPS_BEFORE and is_befallen():
            time.sleep(0.5)  # it is ahead of the training
            mark_fault()
            self.fault()
        return torch.ones(64)


def train_on_samples(fault: Callable[[], object]) -> None:
    """The fault befalls a worker of the data loader."""
    training = Training()
    for _ in DataLoader(Samples(fault), batch_size=1, num_workers=1):
        training.step()


def lose_loader_worker() -> None:
    """open-mmlab/mmrotate#501: the kernel kills a worker of one rank's data loader for want of memory."""
    train_on_samples(lambda: os.kill(os.getpid(), signal.SIGKILL))


def block_loader_worker() -> None:
    """A worker of one rank's data loader blocks in a FIFO without a writer."""

    def read() -> None:
        os.mkfifo(folder() / "samples")
        (folder() / "samples").read_bytes()

    train_on_samples(read)


def fail_in_thread() -> None:
    """ray-project/ray#28314: each rank trains in a thread, whose error is kept until the ranks are all through."""
    errors = queue.Queue[Exception]()

    def train() -> None:
        try:
            for step in Training().steps():
                if befalls(step):
                    raise ValueError("the batch has no labels")
        except ValueError as error:
            errors.put(error)

    threading.Thread(target=train).start()
    queue.Queue[str]().get()  # the driver's next request


def hang_up() -> None:
    """pytorch/pytorch#76894: a job was started with nohup, and one rank gets the signal of the closed terminal all the
    same, since a library has set a handler of its own.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL if is_befallen() else signal.SIG_IGN)
    Training().train(then=lambda: os.kill(os.getpid(), signal.SIGHUP))


def compile_each_length() -> None:
    """pytorch/pytorch#140229: one rank's batches have a new length in each step, and each is compiled for anew."""
    torch._dynamo.config.recompile_limit = 1 << 20
    torch._dynamo.config.accumulated_recompile_limit = 1 << 20
    torch._dynamo.config.automatic_dynamic_shapes = False
    layers = [layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU())]
    # This backend spares the build of kernels, and its time: a machine busy with jobs would take minutes for it.
    model = DistributedDataParallel(torch.compile(nn.Sequential(*layers), backend="eager"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in steps():
        length = 16
        if gets_slow(step):
            length += step - STEPS_BEFORE_SLOW + 1
        optimizer.zero_grad()
        model(torch.randn(2, length, 16)).square().mean().backward()
        optimizer.step()
