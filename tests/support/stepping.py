"""Somebody who writes to memory or to a file while it is read: threads of this process, and another process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_STRIDE = 4099
_MAP = f"""
import mmap, random, sys
path, start = sys.argv[1], int(sys.argv[2])
with open(path, "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
step = 0
while True:
    step += 1
    for at in range(start + step % 997, len(memory), {_STRIDE}):
        memory[at] = memory[at] + 1 & 255
    if step == 1:
        print("begun", flush=True)
"""


def step(arrays: list[np.ndarray[Any, Any]], number: int) -> None:
    """Change one of 61 words of each, by a unit in the last place."""
    for array in arrays:
        words = array.reshape(-1).view(f"u{array.itemsize}")[number % 61 :: 61]
        np.add(words, 1, out=words)


@contextmanager
def stepped(*arrays: np.ndarray[Any, Any]) -> Iterator[Callable[[], None]]:
    """A thread steps the arrays as long as the block lasts. What it gives waits until all of them are another."""
    stop = threading.Event()
    num_steps = 0

    def run() -> None:
        nonlocal num_steps
        while not stop.is_set():
            step(list(arrays), num_steps)
            num_steps += 1

    def wait(more: int = 2) -> None:
        last = num_steps + more
        while num_steps < last:
            time.sleep(0.001)

    thread = threading.Thread(target=run)
    thread.start()
    wait(1)
    try:
        yield wait
    finally:
        stop.set()
        thread.join()


@contextmanager
def mapped_and_written(path: Path, start: int) -> Iterator[Callable[[], None]]:
    """Another process writes to the file through a map, from byte `start` on, as long as the block lasts. What it gives
    waits until all of it is another."""

    def end() -> bytes:
        """Each pass of the other process changes a byte of it, and ends with that."""
        return path.read_bytes()[-_STRIDE:]

    def wait() -> None:
        for _ in range(2):
            before = end()
            while end() == before:
                time.sleep(0.001)

    with subprocess.Popen([sys.executable, "-c", _MAP, str(path), str(start)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        try:
            yield wait
        finally:
            process.kill()
