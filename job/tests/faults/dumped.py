"""python -m job.tests.faults.dumped MODULE FUNCTION [ARGUMENT...]: one rank of a program, without the probe, that dumps
its Flight Recorder when it is asked to."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

REQUEST, DUMPS, GROUPS = "dump", "dumps", "groups"
"""The file in TW_FAULTS_DIR that asks all ranks, and the folders there that they write to."""


def dump_when_asked(folder: Path, rank: int, *, with_stacks: bool = True) -> None:
    """Have a thread write the dump as torchfrtrace reads it, and the ranks of its process groups as NCCL's dump has
    them. It comes to nothing in a process that cannot go on."""

    def dump() -> None:
        while not (folder / REQUEST).exists():
            time.sleep(0.1)
        data = torch._C._distributed_c10d._dump_fr_trace(True, with_stacks)  # type: ignore[attr-defined]
        groups = {
            group.group_name: {"name": group.group_name, "desc": group.group_desc, "ranks": str(list(ranks))}
            for group, ranks in dist.distributed_c10d._world.pg_group_ranks.items()
            if isinstance(group, dist.ProcessGroup)  # a number stands for all groups that this rank is not in
        }
        for name, content in ((GROUPS, json.dumps(groups).encode()), (DUMPS, data)):
            (folder / name).mkdir(exist_ok=True)
            new = folder / f"{name}-{rank}.new"
            new.write_bytes(content)
            new.rename(folder / name / f"rank_{rank}")

    threading.Thread(target=dump, daemon=True).start()


if __name__ == "__main__":
    from .programs.__main__ import main

    dump_when_asked(Path(os.environ["TW_FAULTS_DIR"]), int(os.environ["RANK"]))
    main()
