"""Rank 1 reduces to another root than the others, or does not come to a reduce_scatter, which is an all_reduce to gloo.
Prints what the page of this rank says that it is in, and the calls that stand beside it."""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch._inductor
import torch.distributed as dist

from tensorwire_job.page import call_file
from tensorwire_job.page.rank_page import read_page

page = Path(os.environ["TENSORWIRE_PROBE_DIR"]) / f"rank-{os.environ['RANK']}-0.page"


def tell() -> None:
    """Once this rank has read its last calls in the operation that it does not come out of."""
    begin, deadline = time.monotonic_ns(), time.monotonic() + 20
    while (read := call_file.read(page)) is None or read[0] < begin or not read[1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found = read_page(page)
    assert found is not None
    (group,) = found.process_groups(time.monotonic())
    assert group.operation is not None
    for operation in (group.operation, *(call.operation for call in read[1])):
        print(operation.name, operation.sequence, operation.numel, operation.root, flush=True)
    time.sleep(1.0)  # the other ranks tell theirs
    os._exit(0)


dist.init_process_group("gloo")
rank = dist.get_rank()
time.sleep(1.0)  # the probe is there
threading.Thread(target=tell).start()
if sys.argv[1] == "reduce":
    dist.reduce(torch.ones(4), 0)
    dist.reduce(torch.ones(4), 1 if rank == 1 else 0)
else:
    dist.reduce_scatter(torch.empty(2), [torch.ones(2)] * 2)
    if rank == 0:
        dist._reduce_scatter_base(torch.empty(2), torch.ones(4))
