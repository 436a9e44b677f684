"""Rank 1 reduces to another root than the others, or does not come to a reduce_scatter, which is an all_reduce to gloo.
Prints what the page of this rank says that it is in, and the calls that stand beside it."""

from __future__ import annotations

import os
import sys
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
    (group,) = groups()
    assert group.operation is not None
    for operation in (group.operation, *(call.operation for call in calls)):
        print(operation.name, operation.sequence, operation.numel, operation.root, flush=True)
    told(rank).touch()
    with suppress(AssertionError):  # that the other one has told nothing is seen in what it printed
        wait_until(told(1 - rank).exists)
    os._exit(0)


dist.init_process_group("gloo")
await_probe()
threading.Thread(target=tell).start()
if sys.argv[1] == "reduce":
    dist.reduce(torch.ones(4), 0)
    dist.reduce(torch.ones(4), 1 if rank == 1 else 0)
else:
    dist.reduce_scatter(torch.empty(2), [torch.ones(2)] * 2)
    if rank == 0:
        dist._reduce_scatter_base(torch.empty(2), torch.ones(4))
