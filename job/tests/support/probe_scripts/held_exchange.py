"""Rank 1 is held in its second exchange, behind the probe's kernel and before the recorder. Prints the counts that
stand beside the page of rank 1 meanwhile, and beside that of rank 0 afterwards."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tensorwire_job.rank.operation_timing import Dispatcher

from .own_page import await_probe, last_calls, rank

held_in: list[int] = []


def print_calls() -> None:
    for call in last_calls():
        print(call.operation.name, call.operation.sequence, *call.counts, sep=" ")


def is_timing(_: Dispatcher) -> bool:
    """The kernel asks for this last."""
    held_in.append(len(held_in))
    if rank == 1 and len(held_in) == 2:
        print_calls()
    return False


Dispatcher.is_timing = property(is_timing)  # type: ignore[assignment,method-assign]
dist.init_process_group("gloo")
await_probe()
for own, others in ((2, 1), (1, 2)):
    counts = [own, others] if rank == 0 else [others, own]
    dist.all_to_all_single(torch.empty(3), torch.arange(3.0), counts, counts)
if rank == 0:
    print_calls()
dist.barrier()
dist.destroy_process_group()
