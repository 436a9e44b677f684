"""Calls on tensors of 4 KiB, and the part that the core takes: python -m benchmarks.codecs.small_calls.

Public functions on one BF16 tensor of 4 KiB of normal weights, and on one relative to it in which half of the words
changed: microseconds of a call, the median of many on one core. The core's part is the time in calls of the C ABI,
their conversion of arguments included. benchmarks/results/small-calls.json keeps the figures of the AVX2 and the best
target.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

import tensorwire
from benchmarks.environment import on_each_target
from benchmarks.results_page import keep_rows
from benchmarks.timing import pinned
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


def _microseconds(call: Callable[[], object]) -> float:
    """The median over batches of calls."""
    found = []
    for _ in range(BATCHES):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        found.append((time.thread_time() - start) / CALLS)
    return 1e6 * statistics.median(found)


def _in_core(call: Callable[[], object]) -> float:
    """Microseconds of a call that pass within functions of the C ABI."""
    spent = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            nonlocal spent
            start = time.thread_time()
            result = function(*arguments)
            spent += time.thread_time() - start
            return result

        return run

    functions = {
        name: value for name, value in vars(core).items() if type(value).__name__ == "_FuncPtr" and callable(value)
    }
    found = []
    try:
        for name, function in functions.items():
            setattr(core, name, timed(function))
        for _ in range(BATCHES):
            spent = 0.0
            for _ in range(CALLS):
                call()
            found.append(spent / CALLS)
    finally:
        for name, function in functions.items():
            setattr(core, name, function)
    return 1e6 * statistics.median(found)


def measure() -> list[dict[str, Any]]:
    rows = []
    with pinned(1):
        for name, call in _cases().items():
            rows.append({"call": name, "microseconds": _microseconds(call), "in_core": _in_core(call)})
    return rows


def main() -> None:
    if sys.argv[1:] == ["--child"]:
        json.dump(measure(), sys.stdout)
        return
    found = on_each_target("benchmarks.codecs.small_calls", "--child")
    rows = [{"cpu": cpu, **row} for cpu, rows in found.items() for row in rows]
    columns = (
        ("CPU target", "cpu", ""), ("call", "call", ""), ("microseconds", "microseconds", ".1f"),
        ("in the core", "in_core", ".1f"),
    )  # fmt: skip
    keep_rows("small-calls", "python -m benchmarks.codecs.small_calls", rows, columns)


if __name__ == "__main__":
    main()
