"""Calling the command line in this process, and small models for it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

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


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def on_terminal(width: int, *arguments: object, code: int = 0) -> list[str]:
    """The lines that a command shows on a terminal so many columns wide, its styles taken away."""
    primary, secondary = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(width)}
    with subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=secondary, env=environment) as process:
        os.close(secondary)
        shown = bytearray()
        while data := _read(primary):
            shown += data
        os.close(primary)
    assert process.returncode == code
    return re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).splitlines()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other side is closed
        return b""
