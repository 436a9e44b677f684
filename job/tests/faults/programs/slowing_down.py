"""Training in which one rank gets slow, for reasons of its own."""

from __future__ import annotations

import itertools
import mmap
import os
import statistics
import threading
import time

import torch

from .common import STEPS_BEFORE_SLOW, befalls, chosen, folder
from .small_training import Training, start

_FRESH = 256 << 20  # bytes in each step


class SyncedLog:
    """Logs every tensor in a line of its own, and waits for the disk each time."""

    def __init__(self) -> None:
        self.file = os.open(folder() / "debug.log", os.O_WRONLY | os.O_CREAT)

    def __call__(self) -> None:
        end = time.monotonic() + 0.15
        while time.monotonic() < end:  # as many lines as take that long on this disk
            os.write(self.file, b"tensor 1: mean 0.0\n" * 200)
            os.fsync(self.file)


class GrowingHistory:
    """Keeps every loss, and goes through all of them in each step: ever slower."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def __call__(self) -> None:
        self.losses.extend(torch.rand(10_000).tolist())
        statistics.median(self.losses)


class BusyThread:
    """Tokenises in a thread in pure Python: the two take turns with Python's lock, and each turn costs 5 ms."""

    def __init__(self) -> None:
        for _ in range(2):
            threading.Thread(target=self._tokenise, daemon=True).start()

    def _tokenise(self) -> None:
        text = "the quick brown fox " * 1000
        while True:
            {word: len(word) for word in text.split(" ")}

    def __call__(self) -> None:
        for _ in range(20):  # a step of many small operations that each let go of the lock
            time.sleep(0.0)


class FreshMemory:
    """Fills memory in each step that was never used before, so that the kernel has to give every page of it."""

    def __call__(self) -> None:
        with mmap.mmap(-1, _FRESH) as memory:
            memory[:: mmap.PAGESIZE] = bytes(_FRESH // mmap.PAGESIZE)


class Bursts:
    """Nine steps are as fast as before; in the tenth it summarises for 1.5 s."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self) -> None:
        self.step += 1
        if self.step % 10 == 0:
            time.sleep(1.5)


def main() -> None:
    start()
    training = Training()
    slow_down = None
    for step in itertools.count():
        if befalls(step, STEPS_BEFORE_SLOW):
            slow_down = chosen(globals())()
        if slow_down is not None:
            slow_down()
        training.step()


if __name__ == "__main__":
    main()
