"""One of two ranks: prints what each page says of init_process_group and of process groups that are not used yet."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import read_page

from .own_page import directory, groups, rank, size, wait_until


def setup(of: int) -> str:
    found = read_page(page_path(directory, of, 0))
    return found.setup if found else ""


if rank == 0:
    wait_until(lambda: setup(1) == "in init")  # it waits for rank 0
    wait_until(lambda: setup(0) == "before init")
dist.init_process_group("gloo")
wait_until(lambda: setup(rank) == "initialized")
init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
wait_until(lambda: sum(bool(group.members) for group in groups()) == 3)  # a page has the name of a group first
print(sorted((group.name, list(group.members), group.enqueued) for group in groups()))
dist.barrier()
dist.destroy_process_group()
wait_until(lambda: setup(rank) == "destroyed")
