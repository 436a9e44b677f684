"""Rank 1 does not come to the last all_reduce. Prints what stands beside the page once this rank has stood still."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .own_page import await_probe, last_calls, rank

dist.init_process_group("gloo")
await_probe()
even = torch.arange(4.0)
dist.all_reduce(even)
sizes = [2, 1] if rank == 0 else [1, 2]
dist.all_to_all_single(torch.empty(3), torch.arange(3.0), sizes, sizes)
if rank == 0:
    dist.send(torch.ones(5), 1)
else:
    dist.recv(torch.ones(5), 0)
dist.broadcast(torch.ones(2), 1, async_op=True).wait()
if rank == 0:
    last = dist.all_reduce(even, async_op=True)
for call in last_calls():
    of = call.operation
    print(of.name, of.sequence, of.numel, of.root, call.line != 0, *call.counts, sep=" ")
if rank == 1:
    dist.all_reduce(even)
else:
    last.wait()
dist.destroy_process_group()
