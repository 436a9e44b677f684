"""Ranks that give tensors of another size or dtype to the same collective."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from .common import STEPS_BEFORE, befallen_rank, befalls, case
from .small_training import before, mesh_groups, start, steps

SIZES = (4096, 1024, 256, 64)  # of the layers


def reduce_layers(step: int) -> None:
    """A rank skips the gradient of a layer, and is a layer ahead from then on."""
    for layer, size in enumerate(SIZES):
        if layer == 1 and befalls(step):
            continue
        dist.all_reduce(torch.ones(size))


def reduce_in_half(step: int) -> None:
    """A rank reduces in another dtype, of fewer bytes."""
    dtype = torch.bfloat16 if befalls(step) else torch.float32
    dist.all_reduce(torch.ones(1024, dtype=dtype))


def gather(step: int, group: dist.ProcessGroup | None, other: torch.dtype) -> None:
    """A rank gathers in another dtype from a step on."""
    dtype = other if step >= STEPS_BEFORE and befalls(step, step) else torch.float32
    mine = torch.ones(256, dtype=dtype)
    dist.all_gather([torch.empty_like(mine) for _ in range(dist.get_world_size(group))], mine, group=group)


def main() -> None:
    start()
    _, tp = mesh_groups("dp", "tp")
    name = case()
    for step in steps():
        if name == "sizes-of-layers":
            reduce_layers(step)
        elif name == "dtype-of-fewer-bytes":
            reduce_in_half(step)
        elif name == "gather-of-float64":
            gather(step, tp, torch.float64)
        else:
            if step % 100 == 99 and before() == befallen_rank():
                time.sleep(1.5)  # an evaluation, which the others wait for
            gather(step, None, torch.int32)


if __name__ == "__main__":
    main()
