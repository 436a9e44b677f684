"""Ranks that wait or fail before they have joined the others."""

from __future__ import annotations

import importlib
import itertools
import time

import torch.distributed as dist

from .common import chosen, is_befallen, mark_fault, stay_away
from .small_training import Training, start


def lack_module() -> None:
    """The environment of a rank lacks a module."""
    if is_befallen():
        time.sleep(1.5)  # the others are waiting for it by then
        mark_fault()
        importlib.import_module("fused_kernels")
    start()
    training = Training()
    for _ in itertools.count():
        training.step()


def wait_for_lock() -> None:
    """A rank is stuck before init_process_group, which the others wait in."""
    if is_befallen():
        stay_away()
    dist.init_process_group("gloo")
    dist.barrier()


if __name__ == "__main__":
    chosen(globals())()
