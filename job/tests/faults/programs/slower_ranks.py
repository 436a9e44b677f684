"""Training in which one rank gets slow, by itself or since another process slows it down."""

from __future__ import annotations

import itertools
import mmap
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .common import STEPS_BEFORE_SLOW, befallen_rank, befalls, folder, gets_slow, is_befallen, mark_fault
from .small_training import Training, before, die_with_parent, mesh_groups, pass_on, sharded, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LAYERS = 4
_BLOCKS = 3
_FRESH = 256 << 20  # bytes in each step


def be_slow_in_mesh() -> None:
    """2 x 2 mesh, groups of two only: each layer of one rank takes 0.1 s longer."""
    dp, tp = mesh_groups("dp", "tp")
    for step in itertools.count():
        for _ in range(_LAYERS):
            time.sleep(0.006)
            if gets_slow(step):
                time.sleep(0.1)
            dist.all_reduce(torch.ones(512), group=tp)
        dist.all_reduce(torch.ones(4096), group=dp)


def be_slow_in_ring() -> None:
    """Blocks of keys and values go round a ring; one rank takes 0.1 s longer for each block."""
    for step in itertools.count():
        block = torch.ones(1024)
        for _ in range(_BLOCKS):
            received = torch.empty_like(block)
            works = pass_on(block, received)
            time.sleep(0.008)
            if gets_slow(step):
                time.sleep(0.1)
            for work in works:
                work.wait()
            block = received
        dist.all_reduce(torch.ones(256))


class Unrolled(nn.Module):
    """A recurrent cell, step by step: many small operations."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(64, 64)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(batch), 64)
        for _ in range(60):
            state = self.cell(batch, state)
        return state


def detect_anomalies() -> None:
    """One rank looks for the source of NaN: anomaly detection, and statistics of every weight."""
    training = Training(Unrolled())
    for step in itertools.count():
        if befalls(step, STEPS_BEFORE_SLOW):
            torch.autograd.set_detect_anomaly(True)
            for parameter in training.model.parameters():
                parameter.register_hook(describe)
        training.step()


def describe(gradient: torch.Tensor) -> None:
    matrix = gradient.detach().reshape(len(gradient), -1)
    torch.linalg.svdvals(matrix.repeat(10, 10))


def log_to_slow_reader() -> None:
    """One rank writes much to standard output, whose reader takes 64 KiB in 0.15 s."""
    training = Training()
    reader = None
    for step in itertools.count():
        if befalls(step, STEPS_BEFORE_SLOW):
            reader = subprocess.Popen(
                [sys.executable, "-c", "import os, time\nwhile os.read(0, 1 << 16): time.sleep(0.15)"],
                stdin=subprocess.PIPE,
                preexec_fn=die_with_parent,
            )
        if reader is not None and reader.stdin is not None:
            os.write(reader.stdin.fileno(), b"gradient: 0.0\n" * (1 << 12))
        training.step()


def be_late_as_root() -> None:
    """One rank reads batches for all and broadcasts them; its storage gets slow."""
    source = befallen_rank()
    for step in steps():
        if gets_slow(step):
            time.sleep(0.2)
        dist.broadcast(torch.ones(4096), src=source)


def be_late_by_two() -> None:
    """Two ranks share a node that got slow: both take 0.2 s longer for each step."""
    training = Training()
    late = (befallen_rank() + 1) % dist.get_world_size()
    for step in itertools.count():
        if step >= STEPS_BEFORE_SLOW and (is_befallen() or dist.get_rank() == late):
            mark_fault()
            time.sleep(0.2)
        training.step()


# Reasons of its own: each is slow once for each step.


def slow_down(reason: str) -> None:
    """One rank gets slow in its steps, for one of the reasons below."""
    slow = globals()[reason]()
    for step in Training().steps():
        if gets_slow(step):
            next(slow)


def sync_log() -> Iterator[None]:
    """Logs every tensor in a line of its own, and waits for the disk each time."""
    file = os.open(folder() / "debug.log", os.O_WRONLY | os.O_CREAT)
    while True:
        end = time.monotonic() + 0.15
        while time.monotonic() < end:  # as many lines as take that long on this disk
            os.write(file, b"tensor 1: mean 0.0\n" * 200)
            os.fsync(file)
        yield


def keep_history() -> Iterator[None]:
    """Keeps every loss, and goes through all of them in each step: ever slower."""
    losses: list[float] = []
    while True:
        losses.extend(torch.rand(10_000).tolist())
        statistics.median(losses)
        yield


def share_lock() -> Iterator[None]:
    """Tokenises in threads in pure Python: they take turns with Python's lock, and each turn costs 5 ms."""

    def tokenise() -> None:
        text = "the quick brown fox " * 1000
        while True:
            {word: len(word) for word in text.split(" ")}

    for _ in range(2):
        threading.Thread(target=tokenise, daemon=True).start()
    while True:
        for _ in range(20):  # a step of many small operations that each let go of the lock
            time.sleep(0.0)
        yield


def fill_fresh_memory() -> Iterator[None]:
    """Fills memory in each step that was never used before, so that the kernel has to give every page of it."""
    while True:
        with mmap.mmap(-1, _FRESH) as memory:
            memory[:: mmap.PAGESIZE] = bytes(_FRESH // mmap.PAGESIZE)
        yield


def summarise() -> Iterator[None]:
    """Nine steps are as fast as before; in the tenth it summarises for 1.5 s."""
    for step in itertools.count(1):
        if step % 10 == 0:
            time.sleep(1.5)
        yield


# Another process.


def disturb(act: Callable[[int], object]) -> None:
    """After a while, the next rank does something to the befallen one, whose process it is given, in a thread."""
    if is_befallen():
        (folder() / "pid").write_text(str(os.getpid()))
    dist.barrier()
    if before() == befallen_rank():

        def disturb_later(pid: int) -> None:
            time.sleep(7.0)
            mark_fault()
            act(pid)

        threading.Thread(target=disturb_later, args=[int((folder() / "pid").read_text())], daemon=True).start()


def be_starved() -> None:
    """DDP; the rank is given low priority on a CPU that another program keeps busy."""
    cpu = max(os.sched_getaffinity(0))

    def starve(pid: int) -> None:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), [cpu])
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)
        subprocess.Popen(["taskset", "--cpu-list", str(cpu), sys.executable, "-c", "while True: pass"])

    disturb(starve)
    model = DistributedDataParallel(nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in steps():
        for _ in range(4):
            torch.randn(256, 256) @ torch.randn(256, 256)
        model(torch.randn(64, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def be_stopped(stop: float = 0.0, go: float = 0.0) -> None:
    """FSDP2; the rank is stopped and continued again and again, as by a debugger or a checkpointing container. Without
    seconds nothing is wrong.
    """

    def stop_and_go(pid: int) -> None:
        while True:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(stop)
            os.kill(pid, signal.SIGCONT)
            time.sleep(go)

    if stop:
        disturb(stop_and_go)
    else:
        mark_fault()
    layers = [nn.Linear(64, 64) for _ in range(2)]
    for _ in Training(nn.Sequential(*layers), lambda model: sharded(model, *layers)).steps():
        pass
