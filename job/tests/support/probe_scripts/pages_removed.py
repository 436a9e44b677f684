"""One of two ranks: trains without the probe, then with it, while the pages are removed; prints the losses as bits."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tensorwire_job import attach

from .own_page import directory, page, path, wait_until

STEPS, REMOVED_BEFORE = 20, 5


def train(before: Callable[[int], None]) -> list[str]:
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for step in range(STEPS):
        before(step)
        loss = model(torch.randn(4, 16, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def remove(step: int) -> None:
    if step == REMOVED_BEFORE and dist.get_rank() == 0:
        shutil.rmtree(directory)
    time.sleep(0.04)  # the probe looks about once in each step


dist.init_process_group("gloo")
without = train(lambda step: None)
attach()
wait_until(lambda: path.exists() and page().slots)
dist.barrier()  # both have their page
pageless = train(remove)
assert not directory.exists()
assert without == pageless, (without, pageless)
print(len(set(without)))
dist.destroy_process_group()
