"""Rank 1 does not come to the last all_reduce. Prints what stands beside the page once this rank has stood still."""

import os
import time
from pathlib import Path

import torch
import torch._inductor
import torch.distributed as dist

from tensorwire_job.page import call_file

dist.init_process_group("gloo")
rank = dist.get_rank()
time.sleep(1.0)  # the probe is there
even = torch.arange(4.0)
dist.all_reduce(even)
dist.all_to_all_single(
    torch.empty(3), torch.arange(3.0), [2, 1] if rank == 0 else [1, 2], [2, 1] if rank == 0 else [1, 2]
)
if rank == 0:
    dist.send(torch.ones(5), 1)
else:
    dist.recv(torch.ones(5), 0)
pending = dist.broadcast(torch.ones(2), 1, async_op=True)
pending.wait()
page = Path(os.environ["TENSORWIRE_PROBE_DIR"]) / f"rank-{rank}-0.page"
if rank == 0:
    last = dist.all_reduce(even, async_op=True)
deadline = time.monotonic() + 20
while (read := call_file.read(page)) is None and time.monotonic() < deadline:
    time.sleep(0.05)
for call in read[1]:
    of = call.operation
    print(of.name, of.sequence, of.numel, of.root, call.line != 0, *call.counts, sep=" ")
if rank == 1:
    dist.all_reduce(even)
else:
    last.wait()
dist.destroy_process_group()
