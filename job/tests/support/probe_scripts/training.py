"""One of two ranks: trains without the probe, with it, and with every operation timed; prints the losses as bits."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tensorwire_job import attach
from tensorwire_job.page import native
from tensorwire_job.page.control import write_control

from .own_page import directory, page, path, wait_until


def model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))


def sharded() -> Any:
    whole = model()
    for layer in (whole[0], whole[2]):
        fully_shard(layer)
    return fully_shard(whole)


def train(wrapped: Any, steps: int = 6) -> list[str]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss = wrapped(torch.randn(4, 16, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def both() -> list[list[str]]:
    return [train(DistributedDataParallel(model())), train(sharded())]


dist.init_process_group("gloo")
without = both()
assert not path.exists()

attach()
attach()
wait_until(lambda: path.exists() and page().slots)
passive = both()

if dist.get_rank() == 0:
    write_control(directory, {}, 5)
wait_until(lambda: page().timed)
timed = both()
assert any(slot.flags & native.ACTIVE and slot.enqueued > 20 for slot in page().slots)

assert without == passive == timed, (without, passive, timed)
print(len(set(without[0])), len(set(without[1])))
dist.destroy_process_group()
