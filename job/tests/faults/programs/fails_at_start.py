"""A rank whose environment lacks a module: it fails before it has joined the others."""

from __future__ import annotations

import importlib
import itertools
import time

from .common import is_befallen, mark_fault
from .small_training import Training, start


def main() -> None:
    if is_befallen():
        time.sleep(1.5)  # the others are waiting for it by then
        mark_fault()
        importlib.import_module("fused_kernels")
    start()
    training = Training()
    for _ in itertools.count():
        training.step()


if __name__ == "__main__":
    main()
