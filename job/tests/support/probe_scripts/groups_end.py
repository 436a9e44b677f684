"""One of two ranks that time their operations: a process group that the script has destroyed is gone."""

from __future__ import annotations

import gc
import weakref

import torch
import torch.distributed as dist

from tensorwire_job.page.control import write_control

from .own_page import directory, page, path, rank, wait_until

dist.init_process_group("gloo")
if rank == 0:
    write_control(directory, {}, 10)
wait_until(lambda: path.exists() and page().header.control)
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
