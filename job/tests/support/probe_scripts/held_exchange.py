"""Rank 1 is held in its second exchange, behind the probe's kernel and before the recorder. Prints the counts that
stand beside the page of rank 1 meanwhile, and beside that of rank 0 afterwards."""

import os
import time
from pathlib import Path

import torch
import torch._inductor
import torch.distributed as dist

from tensorwire_job.page import call_file
from tensorwire_job.rank.operation_timing import Dispatcher

page = Path(os.environ["TENSORWIRE_PROBE_DIR"]) / f"rank-{os.environ['RANK']}-0.page"
held_in: list[int] = []


def printed(since_ns: int) -> None:
    """What this rank called, as it reads it after that time."""
    deadline = time.monotonic() + 20
    while (read := call_file.read(page)) is None or read[0] < since_ns:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for call in read[1]:
        print(call.operation.name, call.operation.sequence, *call.counts, sep=" ")


def is_timing(_: Dispatcher) -> bool:
    """The kernel asks for this last."""
    held_in.append(len(held_in))
    if rank == 1 and len(held_in) == 2:
        printed(time.monotonic_ns())
    return False


Dispatcher.is_timing = property(is_timing)  # type: ignore[assignment,method-assign]
dist.init_process_group("gloo")
rank = dist.get_rank()
time.sleep(1.0)  # the probe is there
for own, others in ((2, 1), (1, 2)):
    counts = [own, others] if rank == 0 else [others, own]
    dist.all_to_all_single(torch.empty(3), torch.arange(3.0), counts, counts)
if rank == 0:
    printed(time.monotonic_ns())
dist.barrier()
dist.destroy_process_group()
