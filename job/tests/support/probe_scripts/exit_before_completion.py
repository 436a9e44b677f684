"""One of two ranks that time their operations: the first ends while one is open, which the other enters only then."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tensorwire_job.page.control import write_control

from .own_page import directory, page, rank, wait_until

dist.init_process_group("gloo")
if rank == 0:
    write_control(directory, {}, 10)
wait_until(lambda: page().header.control)
dist.barrier()
if rank == 1:
    wait_until(lambda: page(0).exit_reason)
work = dist.all_reduce(torch.ones(1), async_op=True)
if rank == 1:
    assert work is not None
    work.wait()
