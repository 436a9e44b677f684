"""Jobs in which nothing is wrong."""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import random
import signal
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader, Dataset

from .common import folder, is_befallen, mark_fault
from .small_training import Training, mesh_groups, pass_on, start, steps

if TYPE_CHECKING:
    from collections.abc import Callable

_SIGNAL_SECONDS = 8.0  # between two signals to all
_SYNCHRONIZED_SECONDS = 4.0  # of steps that a rank takes by itself


def run(program: Callable[[], object]) -> None:
    """What is to be watched begins at once."""
    start()
    mark_fault()
    program()


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


def train_ddp(kind: str) -> None:
    """DDP in which ranks wait for each other now and then, for reasons of their own."""
    perceptron = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    training = Training(torch.compile(perceptron) if kind == "compile" else perceptron)
    for step in training.steps():
        is_due = step % 200 == 199
        if kind == "checkpoint-of-all" and is_due:
            writer = SlowWriter(folder() / f"checkpoint-{step}")
            dcp.save({"model": training.model.module.state_dict()}, storage_writer=writer)
        elif kind in ("checkpoint-of-one", "evaluation-of-one") and is_due:
            if is_befallen() and kind == "evaluation-of-one":
                compute(2.5)
            elif is_befallen():
                torch.save(training.model.state_dict(), folder() / "checkpoint.pt")
                time.sleep(2.5)  # the storage
            dist.barrier()
        elif kind == "uneven":
            time.sleep(random.uniform(0.0, 0.015) + 0.008 * is_befallen())
        elif kind == "collects-garbage" and step % 50 == 0:
            gc.collect()
        elif kind == "long-steps":
            compute(6.0)  # longer than the gate of a hang


def load_by_worker() -> None:
    training = Training()
    while True:
        for _ in DataLoader(Samples(), batch_size=4, num_workers=1):
            training.step()


def accumulate() -> None:
    training = Training()
    while True:
        with training.model.no_sync():
            for _ in range(7):
                training.loss().backward()
                time.sleep(0.1)
        training.loss().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        time.sleep(0.02)


def compress_ddp() -> None:
    from tensorwire.torch import traffic

    training = Training(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).bfloat16())
    traffic.attach_ddp(training.model)
    for step in steps():
        training.optimizer.zero_grad()
        training.model(torch.randn(4, 64).bfloat16()).square().mean().backward()
        training.optimizer.step()
        if step % 50 == 0:
            dist.barrier()


def compress_fsdp() -> None:
    from tensorwire.torch import traffic
    from tests.support.sharded_models import Case, optimizer_of, sharded, train_step

    kind = Case(gradients=torch.bfloat16)
    model = sharded(kind)
    traffic.attach_fsdp(model, gradients=traffic.Exact())
    optimizer = optimizer_of(model, kind)
    for step in steps():
        train_step(model, optimizer, kind, step)


def compress_experts() -> None:
    from tensorwire.torch import traffic

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
    while True:
        for _ in range(dist.get_world_size() - 1):
            time.sleep(0.005)
            for work in pass_on(torch.ones(4096), torch.empty(4096)):
                work.wait()
        dist.all_reduce(torch.ones(256))


def take_turns() -> None:
    """Each refreshes a cache with a file lock held, for a while that differs."""
    for step in Training().steps():
        if step % 200 == 199:
            with (folder() / "cache.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                time.sleep(2.0 if is_befallen() else 0.5)
            dist.barrier()


def synchronize_seldom() -> None:
    """Each rank trains by itself, and then all take the mean of their models. One is a second late each time."""
    training = Training(wrap=lambda model: model)
    while True:
        end = time.monotonic() + _SYNCHRONIZED_SECONDS + is_befallen()
        while time.monotonic() < end:
            training.step()
        for parameter in training.model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


def generate_in_turn() -> None:
    """Two models in DDP by turns, as a generator and what it is judged by; the second takes two steps."""
    first, second = Training(), Training()
    while True:
        first.step()
        second.step()
        second.step()


def train_on_mesh() -> None:
    """tp in each layer, dp once a step; a group that is first used after a while."""
    dp, tp = mesh_groups("dp", "tp")
    late = dist.new_group()
    for step in count():
        for _ in range(6):
            time.sleep(0.004)
            dist.all_reduce(torch.ones(512), group=tp)
        dist.all_reduce(torch.ones(4096), group=dp)
        if step > 200 and step % 100 == 0:
            dist.barrier(late)


def route_to_experts() -> None:
    """all_to_all of uneven sizes, which the ranks tell each other first."""
    world = dist.get_world_size()
    while True:
        sent = torch.randint(1, 500, (world,))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        output = torch.empty(int(received.sum()))
        dist.all_to_all_single(output, torch.ones(int(sent.sum())), received.tolist(), sent.tolist())
        time.sleep(0.02)


def roll_out() -> None:
    """One rank makes samples for a second or two, and the others wait for them."""
    while True:
        samples = torch.ones(1000)
        if is_befallen():
            time.sleep(random.uniform(0.5, 2.0))
        source = torch.tensor(dist.get_rank() if is_befallen() else -1)
        dist.all_reduce(source, dist.ReduceOp.MAX)
        dist.broadcast(samples, int(source))
        for _ in range(20):
            time.sleep(0.01)
            dist.all_reduce(torch.ones(64))


def end_early() -> None:
    """The job is done, and its ranks end one after another, the one that saves the model last."""
    for _ in range(300):
        time.sleep(0.01)
        dist.all_reduce(torch.ones(64))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(8.0 if is_befallen() else random.uniform(0.0, 1.0))
