"""DDP of which a rank leaves: by the ways in which a script ends, or does not quite end."""

from __future__ import annotations

import os
import sys
import threading
from itertools import count
from typing import TYPE_CHECKING

from .common import STEPS_BEFORE, case, is_befallen, mark_fault, stay_away
from .small_training import Training, start

if TYPE_CHECKING:
    import torch


def leave() -> None:
    name = case()
    if name == "sys-exit-0":
        mark_fault()
        sys.exit(0)
    if name == "os-exit-0":
        mark_fault()
        os._exit(0)
    if name == "ctrl-c-hang":
        stay_away()
    mark_fault()
    raise ValueError("the loss of this batch is NaN")


def main() -> None:
    start()
    training = Training()
    if case() == "exception-and-a-thread":
        threading.Thread(target=threading.Event().wait).start()  # such as a logger's, which is not a daemon
    numbers = count()

    def check_gradient(gradient: torch.Tensor) -> None:
        if next(numbers) == STEPS_BEFORE and is_befallen():
            if case() == "ctrl-c-healthy":
                mark_fault()
            else:
                leave()

    training.model.module[0].weight.register_hook(check_gradient)
    while True:
        training.step()


if __name__ == "__main__":
    main()
