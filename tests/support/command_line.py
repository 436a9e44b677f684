"""Calling the command line in this process, and small models for it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from tensorwire.cli import main
from tests.support import forks

if TYPE_CHECKING:
    import subprocess

COMMAND = [sys.executable, "-m", "tensorwire"]


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        assert self.out.count("\n") == 1, "one document on one line"
        return json.loads(self.out)


Run = Callable[..., Ran]


def weights(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * np.float32(0.02)


def tensors() -> dict[str, np.ndarray]:
    return {
        "layer.weight": weights(1, (300, 200)).astype(ml_dtypes.bfloat16),
        "layer.bias": weights(2, (200,)),
        "two_exponents": np.repeat(np.array([1.0, 2.0], np.float32), 8192),
    }


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def forked(
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    first: Callable[[], object] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """A command in a process that is forked, and imports nothing anew; it does `first` before. `test_cli_process`
    starts commands as a shell does."""
    command = [*map(str, arguments)]

    def act() -> int:
        if first is not None:
            first()
        return main(command)

    options = {"args": ["tensorwire", *command], "capture_output": True, "timeout": 60, **options}
    return forks.run(act, environment, **options)


def begun(*arguments: object, **options: Any) -> subprocess.Popen[Any]:
    """A command in a process that is forked, which goes on meanwhile."""
    command = [*map(str, arguments)]
    return forks.popen(lambda: main(command), args=["tensorwire", *command], **options)


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, bytearray]]:
    """A terminal to write to, and what it has shown by the end: it takes only a few thousand bytes that wait."""
    primary, secondary = pty.openpty()
    shown = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # the other side is closed
            while data := os.read(primary, 1 << 16):
                shown.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield secondary, shown
    finally:
        os.close(secondary)
        reader.join()
        os.close(primary)


def on_terminal(width: int, *arguments: object, code: int = 0) -> list[str]:
    """The lines that a command shows on a terminal so many columns wide, its styles taken away."""
    environment = {"TERM": "xterm-256color", "COLUMNS": str(width)}
    with terminal() as (stream, shown):
        done = forked(*arguments, environment=environment, capture_output=False, stdout=stream)
    assert done.returncode == code
    return re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).splitlines()
