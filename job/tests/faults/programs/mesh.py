"""Four ranks as a mesh of two dimensions, dp and tp, whose process groups are used for the first time when it suits."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from .common import befalls, case, chosen, is_befallen, mark_fault, stay_away
from .small_training import mesh_groups, start

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

LAYERS = 4


def reduce(group: ProcessGroup | None = None) -> None:
    time.sleep(0.01)
    dist.all_reduce(torch.ones(64), group=group)


def leave_early(tp: ProcessGroup, dp: ProcessGroup) -> None:
    """The rank goes on to dp while the others are still in the loop over tp."""
    for step in count():
        if befalls(step, 150):
            break
        reduce(tp)
    while True:
        reduce(dp)


def leave_each_step_early(tp: ProcessGroup, dp: ProcessGroup) -> None:
    """The rank has fewer layers in each step: its partner waits for it a step later, and so on, in a circle."""
    for step in count():
        skips = step >= 40 and is_befallen()
        if skips:
            mark_fault()
        for _ in range(LAYERS // 2 if skips else LAYERS):
            reduce(tp)
        reduce(dp)


def stick_before_first(tp: ProcessGroup, dp: ProcessGroup) -> None:
    """The rank is stuck before the first operation of its tp group."""
    for _ in range(150):
        reduce()
    if is_befallen():
        stay_away()
    while True:
        reduce(tp)
        reduce(dp)


def stick_before_new_dp(tp: ProcessGroup, dp: ProcessGroup) -> None:
    """The rank is stuck before the first operation of its dp group, in which its peer waits."""
    for _ in range(150):
        reduce(tp)
    if is_befallen():
        stay_away()
    while True:
        reduce(dp)
        reduce(tp)


def main() -> None:
    start()
    dp, tp = mesh_groups("dp", "tp")
    if "used" in case():
        reduce(dp)
    chosen(globals())(tp, dp)


if __name__ == "__main__":
    main()
