"""One of two ranks that time their operations: the first ends while one is open, which the other enters only then."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tensorwire_job.page.control import write_control
from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import Page, read_page

directory = Path(os.environ["TENSORWIRE_PROBE_DIR"])
rank = int(os.environ["RANK"])


def page(of: int) -> Page:
    found = read_page(page_path(directory, of, 0))
    assert found is not None
    return found


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, page(rank)
        time.sleep(0.001)


dist.init_process_group("gloo")
if rank == 0:
    write_control(directory, {}, 10)
wait_until(lambda: page(rank).header.control)
dist.barrier()
if rank == 1:
    wait_until(lambda: page(0).exit_reason)
work = dist.all_reduce(torch.ones(1), async_op=True)
if rank == 1:
    assert work is not None
    work.wait()
