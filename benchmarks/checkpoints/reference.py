"""How long the pure-Python package in reference/ takes to restore a real model, with NumPy alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import tensorwire
from benchmarks.checkpoints.directories import nbytes, write_hub
from benchmarks.tables import Row, Table
from tests.support.checkpoint_models import tree_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

SOURCES = Path(__file__).resolve().parents[2] / "reference"
PROFILES: tuple[Literal["fast", "compact"], ...] = ("fast", "compact")


def restore(src: Path, out: Path) -> tuple[float, float]:
    """Seconds, and seconds of CPU, of a program that restores a directory."""
    command = [sys.executable, "-m", "tensorwire_reference", "decompress", src, "-o", out]
    before, started = os.times(), time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(SOURCES)}, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, cpu


def measure(quick: bool) -> list[Row]:
    del quick  # it takes seconds
    return list(_rows())


def _rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as place:
        src = Path(place, "model")
        write_hub(src)
        (src / "pytorch_model.bin").unlink()
        for profile in PROFILES:
            packed, back = Path(place, profile), Path(place, f"{profile}.back")
            tensorwire.compress_checkpoint(src, packed, profile=profile)
            seconds, cpu = restore(packed, back)
            yield {
                "profile": profile, "nbytes": nbytes(src), "stored": nbytes(packed), "seconds": seconds, "cpu": cpu,
                "same": tree_hashes(back) == tree_hashes(src),
            }  # fmt: skip


TABLE = Table(
    "reference",
    "A directory restored by the reference decoder, with NumPy alone",
    "all-MiniLM-L6-v2 in BF16, without the file of torch.save. `python -m tensorwire_reference decompress` is a "
    "program of its own, in one run; its start is in the seconds.",
    (("profile", "profile", ""), ("bytes", "nbytes", ",d"), ("stored", "stored", ",d"),
     ("restore, s", "seconds", ".1f"), ("of them CPU, s", "cpu", ".1f"), ("every byte is back", "same", "")),
    measure,
)  # fmt: skip
