"""Ranks that give tensors of another size or dtype to the same collective."""

from __future__ import annotations

import os
import time
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from job.tests.faults.programs.common import case, is_befallen, mark_fault

FAULT_STEP = 100
SIZES = (4096, 1024, 256, 64)  # of the layers


def reduce_layers(step: int) -> None:
    """A rank skips the gradient of a layer, and is a layer ahead from then on."""
    for layer, size in enumerate(SIZES):
        if step == FAULT_STEP and layer == 1 and is_befallen():
            mark_fault()
            continue
        dist.all_reduce(torch.ones(size))


def reduce_in_half(step: int) -> None:
    """A rank reduces in another dtype, of fewer bytes."""
    dtype = torch.float32
    if step == FAULT_STEP and is_befallen():
        mark_fault()
        dtype = torch.bfloat16
    dist.all_reduce(torch.ones(1024, dtype=dtype))


def gather(step: int, group: dist.ProcessGroup | None, other: torch.dtype) -> None:
    """A rank gathers in another dtype from a step on."""
    dtype = torch.float32
    if step >= FAULT_STEP and is_befallen():
        mark_fault()
        dtype = other
    mine = torch.ones(256, dtype=dtype)
    dist.all_gather([torch.empty_like(mine) for _ in range(dist.get_world_size(group))], mine, group=group)


def main() -> None:
    dist.init_process_group("gloo")
    tp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"].get_group()
    name = case()
    for step in count():
        time.sleep(0.02)
        if name == "sizes-of-layers":
            reduce_layers(step)
        elif name == "dtype-of-fewer-bytes":
            reduce_in_half(step)
        elif name == "gather-of-float64":
            gather(step, tp, torch.float64)
        else:
            if step % 100 == 99 and dist.get_rank() == (int(os.environ["TW_FAULTS_RANK"]) + 1) % 4:
                time.sleep(1.5)  # an evaluation, which the others wait for
            gather(step, None, torch.int32)


if __name__ == "__main__":
    main()
