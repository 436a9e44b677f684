"""More jobs in which nothing is wrong: compressed messages, signals to all, a ring, steps without the others."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

from tensorwire.torch import traffic
from tests.support.sharded_models import Case, optimizer_of, sharded, train_step

from .common import case, folder, is_befallen, mark_fault
from .small_training import Training, start

_SIGNAL_SECONDS = 8.0  # between two signals to all
_SYNCHRONIZED_SECONDS = 4.0  # of steps that a rank takes by itself


def compress_ddp() -> None:
    training = Training(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).bfloat16())
    traffic.attach_ddp(training.model)
    for step in itertools.count():
        time.sleep(0.02)
        training.optimizer.zero_grad()
        training.model(torch.randn(4, 64).bfloat16()).square().mean().backward()
        training.optimizer.step()
        if step % 50 == 0:
            dist.barrier()


def compress_fsdp() -> None:
    kind = Case(gradients=torch.bfloat16)
    model = sharded(kind)
    traffic.attach_fsdp(model, gradients=traffic.Exact())
    optimizer = optimizer_of(model, kind)
    for step in itertools.count():
        time.sleep(0.02)
        train_step(model, optimizer, kind, step)


def compress_experts() -> None:
    size = dist.get_world_size()
    rows = torch.randn(8 * size, 16).bfloat16().requires_grad_()
    while True:
        time.sleep(0.02)
        traffic.all_to_all(rows, [8] * size)[0].sum().backward()
        dist.all_reduce(torch.zeros(1))


def save_when_told() -> None:
    """A scheduler tells all ranks now and then that the job may end soon, and each saves what it has."""
    is_told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, lambda *_: is_told.set())
    training = Training()
    last, number = time.monotonic(), itertools.cycle((signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM))
    while True:
        training.step()
        if time.monotonic() > last + _SIGNAL_SECONDS:
            last = time.monotonic()
            os.kill(os.getpid(), next(number))
        if is_told.is_set():
            is_told.clear()
            torch.save(training.model.state_dict(), folder() / f"rank-{dist.get_rank()}.pt")


def pass_round() -> None:
    """Blocks of keys and values go round a ring, as context parallelism has it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    while True:
        for _ in range(size - 1):
            time.sleep(0.005)
            block, received = torch.ones(4096), torch.empty(4096)
            ends = [
                dist.P2POp(dist.isend, block, (rank + 1) % size),
                dist.P2POp(dist.irecv, received, (rank - 1) % size),
            ]
            for work in dist.batch_isend_irecv(ends):
                work.wait()
        dist.all_reduce(torch.ones(256))


def synchronize_seldom() -> None:
    """Each rank trains by itself, and then all take the mean of their models. One is a second late each time."""
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    while True:
        end = time.monotonic() + _SYNCHRONIZED_SECONDS + is_befallen()
        while time.monotonic() < end:
            time.sleep(0.02)
            optimizer.zero_grad()
            model(torch.randn(4, 64)).square().mean().backward()
            optimizer.step()
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


def generate_in_turn() -> None:
    """Two models in DDP by turns, as a generator and what it is judged by; the second takes two steps."""
    first, second = Training(), Training()
    while True:
        first.step()
        second.step()
        second.step()


CASES = {
    "healthy-compressed-ddp": compress_ddp,
    "healthy-compressed-fsdp": compress_fsdp,
    "healthy-compressed-experts": compress_experts,
    "healthy-signals": save_when_told,
    "healthy-ring": pass_round,
    "healthy-local-steps": synchronize_seldom,
    "healthy-two-models": generate_in_turn,
}


if __name__ == "__main__":
    start()
    mark_fault()
    CASES[case()]()
