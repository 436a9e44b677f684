"""FSDP2; a rank is stopped and continued again and again, as by a debugger or a checkpointing container."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import count

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from job.tests.faults.programs.common import case, folder, mark_fault

STOP_AND_GO = {"stopped-most-of-the-time": (0.3, 0.1), "stopped-now-and-then": (0.3, 1.7)}  # seconds
BEFORE_SECONDS = 7.0


def stop_neighbour(pid: int, stop: float, go: float) -> None:
    time.sleep(BEFORE_SECONDS)
    mark_fault()
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(stop)
        os.kill(pid, signal.SIGCONT)
        time.sleep(go)


def main() -> None:
    dist.init_process_group("gloo")
    rank, befallen = dist.get_rank(), int(os.environ["TW_FAULTS_RANK"])
    (folder() / f"pid-{rank}").write_text(str(os.getpid()))
    dist.barrier()
    if rank == (befallen + 1) % dist.get_world_size() and case() in STOP_AND_GO:
        pid = int((folder() / f"pid-{befallen}").read_text())
        threading.Thread(target=stop_neighbour, args=(pid, *STOP_AND_GO[case()]), daemon=True).start()
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(2)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in count():
        if step == 0 and case() not in STOP_AND_GO and rank == 0:
            mark_fault()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)


if __name__ == "__main__":
    main()
