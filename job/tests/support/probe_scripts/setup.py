"""One of two ranks: prints what each page says of init_process_group and of the process groups that nobody has used."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import Page, read_page

directory = Path(os.environ["TENSORWIRE_PROBE_DIR"])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def page(of: int) -> Page | None:
    return read_page(page_path(directory, of, 0))


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, page(rank)
        time.sleep(0.02)


def setup(of: int) -> str:
    found = page(of)
    return found.setup if found else ""


def main() -> None:
    if rank == 0:
        wait_until(lambda: setup(1) == "in init")  # it waits for rank 0
        assert setup(0) == "before init", setup(0)
    dist.init_process_group("gloo")
    wait_until(lambda: setup(rank) == "initialized")
    init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    wait_until(lambda: len(page(rank).slots) == 3)
    groups = page(rank).process_groups(time.monotonic())
    print(sorted((group.name, list(group.members), group.enqueued) for group in groups))
    dist.barrier()
    dist.destroy_process_group()
    wait_until(lambda: setup(rank) == "destroyed")


main()
