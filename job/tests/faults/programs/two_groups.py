"""Two groups of all ranks, used in a loop each; a rank leaves the first loop early."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from job.tests.faults.programs.common import is_befallen, mark_fault


def main() -> None:
    dist.init_process_group("gloo")
    generator, discriminator = dist.new_group(), dist.new_group()
    for step in range(400):
        time.sleep(0.01)
        if step == 200 and is_befallen():
            mark_fault()
            break
        dist.all_reduce(torch.ones(100), group=generator)
    while True:
        time.sleep(0.01)
        dist.all_reduce(torch.ones(100), group=discriminator)


if __name__ == "__main__":
    main()
