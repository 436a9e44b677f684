"""A rank that is stuck before init_process_group, which the others wait in."""

from __future__ import annotations

import torch.distributed as dist

from job.tests.faults.programs.common import is_befallen, stay_away


def main() -> None:
    if is_befallen():
        stay_away()
    dist.init_process_group("gloo")
    dist.barrier()


if __name__ == "__main__":
    main()
