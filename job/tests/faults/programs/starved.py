"""DDP; a rank is given low priority on a CPU that another program keeps busy."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from job.tests.faults.programs.common import folder, is_befallen, mark_fault

BEFORE_SECONDS = 7.0


def starve(pid: int, cpu: int) -> None:
    """As the other program does, which starts on the CPU of that rank."""
    time.sleep(BEFORE_SECONDS)
    mark_fault()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), [cpu])
        os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)
    subprocess.Popen(["taskset", "--cpu-list", str(cpu), sys.executable, "-c", "while True: pass"])


def main() -> None:
    dist.init_process_group("gloo")
    rank, befallen = dist.get_rank(), int(os.environ["TW_FAULTS_RANK"])
    if is_befallen():
        (folder() / "pid").write_text(str(os.getpid()))
    dist.barrier()
    if rank == (befallen + 1) % dist.get_world_size():
        pid = int((folder() / "pid").read_text())
        threading.Thread(target=starve, args=(pid, max(os.sched_getaffinity(0))), daemon=True).start()
    model = DistributedDataParallel(nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in count():
        for _ in range(4):
            torch.randn(256, 256) @ torch.randn(256, 256)
        model(torch.randn(64, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)


if __name__ == "__main__":
    main()
