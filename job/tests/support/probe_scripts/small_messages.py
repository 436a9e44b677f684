"""Two ranks that exchange nothing but messages which nobody waits long for: when was the last one completed?"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tensorwire_job.page.rank_page import read_page

dist.init_process_group("gloo")
rank = dist.get_rank()
page = next(Path(os.environ["TENSORWIRE_PROBE_DIR"]).glob(f"rank-{rank}-*.page"))


def since_last() -> float:
    """Seconds, as the page has it; far more where it knows of none."""
    read = read_page(page)
    assert read is not None
    groups = read.process_groups(time.monotonic())
    return min((group.idle_seconds for group in groups if group.idle_seconds is not None), default=1e9)


for _ in range(100):
    dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.empty(1), 0)
    time.sleep(0.02)
young = since_last()
time.sleep(2.0)
print(young < 1.0, 1.5 < since_last() < 4.0)
