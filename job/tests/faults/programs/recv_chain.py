"""A pipeline by hand: each rank gets from the one before and sends to the next."""

from __future__ import annotations

import time
from itertools import count

import torch
import torch.distributed as dist

from job.tests.faults.programs.common import is_befallen, stay_away

FAULT_STEP = 100


def main() -> None:
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    weights = torch.eye(64)
    for step in count():
        activations = torch.ones(8, 64)
        if rank > 0:
            dist.recv(activations, rank - 1)
        if step == FAULT_STEP and is_befallen():
            stay_away()
        activations = activations @ weights
        time.sleep(0.015)
        if rank < last:
            dist.send(activations, rank + 1)


if __name__ == "__main__":
    main()
