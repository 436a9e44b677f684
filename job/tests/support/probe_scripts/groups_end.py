"""One of two ranks that time their operations: a process group that the script has destroyed is gone."""

from __future__ import annotations

import gc
import weakref

import torch
import torch.distributed as dist
from own_page import directory, rank, wait_until

from tensorwire_job.page.control import write_control
from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import read_page


def is_timed() -> bool:
    page = read_page(page_path(directory, rank, 0))
    return page is not None and page.header.control != 0


dist.init_process_group("gloo")
if rank == 0:
    write_control(directory, {}, 10)
wait_until(is_timed)
dist.barrier()
value = torch.ones(1)
if rank == 0:
    dist.send(value, 1)
else:
    dist.recv(value, 0)
dist.all_reduce(value, async_op=True).wait()
group = weakref.ref(dist.group.WORLD)
dist.destroy_process_group()
gc.collect()
print(group() is None)
