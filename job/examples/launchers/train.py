"""A small training script for trying a launcher: DDP on the CPU (gloo). It knows nothing of tensorwire.

Environment:
    STUCK_RANK: after 20 steps this rank waits for ever, as for a batch that does not come.
    STEPS: how many there are; by default 200.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

STUCK_STEP = 20


def load_batch(step: int, rank: int) -> torch.Tensor:
    while step == STUCK_STEP and str(rank) == os.environ.get("STUCK_RANK"):
        time.sleep(1)
    time.sleep(0.05)
    return torch.randn(8, 64)


def train(rank: int) -> None:
    """The model goes with the end of this, before its process group. A DDP that is the last to hold a group joins the
    threads of gloo with the lock of the interpreter, and they may wait for that (pytorch/pytorch#56297)."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(int(os.environ.get("STEPS", "200"))):
        optimizer.zero_grad()
        model(load_batch(step, rank)).square().mean().backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train(rank)
    if rank == 0:
        print(f"trained on {dist.get_world_size()} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
