"""Training in which one rank gets slow, by itself or since another process slows it down."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from .common import STEPS_BEFORE_SLOW, befallen_rank, befalls, case, folder, gets_slow, is_befallen, mark_fault
from .small_training import Training, die_with_parent, mesh_groups, pass_on, run

_LAYERS = 4
_BLOCKS = 3


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


def starve(pid: int, cpu: int) -> None:
    """As the other program does, which starts on the CPU of that rank."""
    time.sleep(_BEFORE_SECONDS)
    mark_fault()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), [cpu])
        os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)
    subprocess.Popen(["taskset", "--cpu-list", str(cpu), sys.executable, "-c", "while True: pass"])


def be_starved() -> None:
    """DDP; the rank is given low priority on a CPU that another program keeps busy."""
    rank, befallen = dist.get_rank(), befallen_rank()
    if is_befallen():
        (folder() / "pid").write_text(str(os.getpid()))
    dist.barrier()
    if rank == (befallen + 1) % dist.get_world_size():
        pid = int((folder() / "pid").read_text())
        threading.Thread(target=starve, args=(pid, max(os.sched_getaffinity(0))), daemon=True).start()
    model = DistributedDataParallel(nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in count():
        for _ in range(4):
            torch.randn(256, 256) @ torch.randn(256, 256)
        model(torch.randn(64, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)


STOP_AND_GO = {"stopped-most-of-the-time": (0.3, 0.1), "stopped-now-and-then": (0.3, 1.7)}  # seconds
_BEFORE_SECONDS = 7.0


def stop_neighbour(pid: int, stop: float, go: float) -> None:
    time.sleep(_BEFORE_SECONDS)
    mark_fault()
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(stop)
        os.kill(pid, signal.SIGCONT)
        time.sleep(go)


def be_stopped() -> None:
    """FSDP2; the rank is stopped and continued again and again, as by a debugger or a checkpointing container."""
    rank, befallen = dist.get_rank(), befallen_rank()
    (folder() / f"pid-{rank}").write_text(str(os.getpid()))
    dist.barrier()
    if rank == (befallen + 1) % dist.get_world_size() and case() in STOP_AND_GO:
        pid = int((folder() / f"pid-{befallen}").read_text())
        threading.Thread(target=stop_neighbour, args=(pid, *STOP_AND_GO[case()]), daemon=True).start()
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(2)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in count():
        if step == 0 and case() not in STOP_AND_GO and rank == 0:
            mark_fault()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)


if __name__ == "__main__":
    run(globals())
