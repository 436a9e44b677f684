"""torch checks what two ranks call (TORCH_DISTRIBUTED_DEBUG=DETAIL), though not the root: each takes the other for it.
Prints what the page of this rank says of its groups, and the calls that stand beside it."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from .own_page import await_probe, directory, groups, last_calls, rank, wait_until


def told(of: int) -> Path:
    return Path(f"{directory}-told-{of}")


def tell() -> None:
    """Once this rank has read its last calls in the operation that it does not come out of."""
    calls = last_calls()
    for group in groups():
        print(group.name, group.size, group.enqueued, group.completed)
    for operation in (call.operation for call in calls):
        print(operation.name, operation.sequence, operation.numel, operation.root, flush=True)
    told(rank).touch()
    with suppress(AssertionError):  # that the other one has told nothing is seen in what it printed
        wait_until(told(1 - rank).exists)
    os._exit(0)


dist.set_debug_level(dist.DebugLevel.DETAIL)
dist.init_process_group("gloo")
await_probe()
pair = dist.new_group([0, 1], group_desc="pair")
dist.all_reduce(torch.ones(4))
dist.all_reduce(torch.ones(4), group=pair)
threading.Thread(target=tell).start()
dist.broadcast(torch.ones(2), 1 - rank, group=pair)
