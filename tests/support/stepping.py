"""Somebody who writes to memory or to a file while it is read: threads of this process, and another process."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAP = """
import mmap, random, sys
path, start = sys.argv[1], int(sys.argv[2])
with open(path, "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
step = 0
while True:
    step += 1
    for at in range(start + step % 997, len(memory), 4099):
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
def stepped(*arrays: np.ndarray[Any, Any]) -> Iterator[None]:
    """A thread steps the arrays as long as the block lasts."""
    stop, begun = threading.Event(), threading.Event()

    def run() -> None:
        number = 0
        while not stop.is_set():
            step(list(arrays), number)
            number += 1
            begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def mapped_and_written(path: Path, start: int) -> Iterator[None]:
    """Another process writes to the file through a map, from byte `start` on, as long as the block lasts."""
    with subprocess.Popen([sys.executable, "-c", _MAP, str(path), str(start)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        try:
            yield
        finally:
            process.kill()
