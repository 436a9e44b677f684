"""Training in which one rank gets slow: in a mesh, in a ring, while it is debugged, and behind a slow reader."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from .common import case, is_befallen, mark_fault
from .small_training import STEPS_BEFORE_SLOW, Training, die_with_parent, start

_LAYERS = 4
_BLOCKS = 3


def be_slow_in_mesh() -> None:
    """2 x 2 mesh, groups of two only: each layer of one rank takes 0.1 s longer."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for step in itertools.count():
        for _ in range(_LAYERS):
            time.sleep(0.006)
            if step >= STEPS_BEFORE_SLOW and is_befallen():
                mark_fault()
                time.sleep(0.1)
            dist.all_reduce(torch.ones(512), group=mesh["tp"].get_group())
        dist.all_reduce(torch.ones(4096), group=mesh["dp"].get_group())


def be_slow_in_ring() -> None:
    """Blocks of keys and values go round a ring; one rank takes 0.1 s longer for each block."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in itertools.count():
        block = torch.ones(1024)
        for _ in range(_BLOCKS):
            received = torch.empty_like(block)
            operations = [
                dist.P2POp(dist.isend, block, (rank + 1) % size),
                dist.P2POp(dist.irecv, received, (rank - 1) % size),
            ]
            works = dist.batch_isend_irecv(operations)
            time.sleep(0.008)
            if step >= STEPS_BEFORE_SLOW and is_befallen():
                mark_fault()
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
    """Somebody looks for the source of NaN on one rank: anomaly detection, and statistics of every weight."""
    training = Training(Unrolled())
    for step in itertools.count():
        if step == STEPS_BEFORE_SLOW and is_befallen():
            mark_fault()
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
        if step == STEPS_BEFORE_SLOW and is_befallen():
            mark_fault()
            reader = subprocess.Popen(
                [sys.executable, "-c", "import os, time\nwhile os.read(0, 1 << 16): time.sleep(0.15)"],
                stdin=subprocess.PIPE,
                preexec_fn=die_with_parent,
            )
        if reader is not None and reader.stdin is not None:
            os.write(reader.stdin.fileno(), b"gradient: 0.0\n" * (1 << 12))
        training.step()


CASES = {
    "slow-in-mesh": be_slow_in_mesh,
    "slow-ring": be_slow_in_ring,
    "anomaly-mode": detect_anomalies,
    "slow-reader": log_to_slow_reader,
}


if __name__ == "__main__":
    start()
    CASES[case()]()
