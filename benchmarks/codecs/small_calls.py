"""Calls on tensors of 4 KiB, and the part that the core takes: python -m benchmarks.codecs.small_calls.

Public functions on one BF16 tensor of 4 KiB of normal weights, and on one relative to it in which half of the words
changed: microseconds of a call, the median of many on one core. The core's part is the time in calls of the C ABI,
their conversion of arguments included. benchmarks/results/small-calls.json keeps the figures of the AVX2 and the best
target.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

import tensorwire
from benchmarks.environment import on_each_target
from benchmarks.results_page import keep_rows
from benchmarks.timing import microseconds, pinned, spent
from tensorwire.codec.frame import core

if TYPE_CHECKING:
    from collections.abc import Callable

NUMEL = 2048
BATCHES, CALLS = 41, 100


def _cases() -> dict[str, Callable[[], object]]:
    random = np.random.default_rng(0)
    base = random.normal(0, 0.02, NUMEL).astype(ml_dtypes.bfloat16)
    content = (base.view(np.uint16) + (random.random(NUMEL) < 0.5)).astype(np.uint16).view(ml_dtypes.bfloat16)
    plain, delta = tensorwire.compress(base), tensorwire.compress(content, base=base)
    base_hash = tensorwire.frame_info(plain).content_hash
    return {
        "compress": lambda: tensorwire.compress(base),
        "decompress": lambda: tensorwire.decompress(plain),
        "compress, relative": lambda: tensorwire.compress(content, base=base),
        "compress, relative, known base_hash": lambda: tensorwire.compress(content, base=base, base_hash=base_hash),
        "decompress, relative": lambda: tensorwire.decompress(delta, base=base),
    }


def _in_core(call: Callable[[], object]) -> float:
    """Microseconds of a call that pass within functions of the C ABI."""
    functions = {name: (core, name) for name, value in vars(core).items() if type(value).__name__ == "_FuncPtr"}
    found = []
    for _ in range(BATCHES):
        with spent(functions) as within:
            for _ in range(CALLS):
                call()
        found.append(sum(each.seconds for each in within.values()) / CALLS)
    return 1e6 * statistics.median(found)


def measure() -> list[dict[str, Any]]:
    rows = []
    with pinned(1):
        for name, call in _cases().items():
            rows.append({"call": name, "microseconds": microseconds(call, BATCHES, CALLS), "in_core": _in_core(call)})
    return rows


def main() -> None:
    found = on_each_target(measure)
    rows = [{"cpu": cpu, **row} for cpu, rows in found.items() for row in rows]
    columns = (
        ("CPU target", "cpu", ""), ("call", "call", ""), ("microseconds", "microseconds", ".1f"),
        ("in the core", "in_core", ".1f"),
    )  # fmt: skip
    keep_rows("small-calls", "python -m benchmarks.codecs.small_calls", rows, columns)


if __name__ == "__main__":
    main()
