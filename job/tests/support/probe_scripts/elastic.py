"""A rank of an elastic job: rank 1 fails once, in the first generation; the next trains until the file `stop` is there.

Its argument is the folder of that file.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

stop = Path(sys.argv[1]) / "stop"
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("gloo")
step = 0
over = torch.zeros(1)
while not over.item():
    step += 1
    if is_first and step == 20 and dist.get_rank() == 1:
        raise ValueError("once")
    time.sleep(0.02)
    over = torch.tensor([float(stop.exists())])
    dist.all_reduce(over, op=dist.ReduceOp.MAX)
dist.destroy_process_group()
