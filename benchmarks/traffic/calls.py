"""How long `Exact` takes for a message of 4 KiB."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import torch

from benchmarks.tables import Row, Table
from tensorwire.torch.traffic import Exact

if TYPE_CHECKING:
    from collections.abc import Callable

NUMEL, BATCHES, CALLS = 2048, 41, 100


def measure(quick: bool) -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [
            _row(what, related, 2 if quick else BATCHES) for what, related in (("plain", False), ("relative", True))
        ]
    finally:
        torch.set_num_threads(threads)


def _row(what: str, related: bool, batches: int) -> Row:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(NUMEL, generator=generator).bfloat16() if related else None
    values = torch.randn(NUMEL, generator=generator).bfloat16() if base is None else base * 1.005
    codec, out = Exact(), torch.empty_like(values)
    message = codec.encode(values, base)
    assert message is not None
    times = {
        "encode": _microseconds(lambda: codec.encode(values, base), batches),
        "decode": _microseconds(lambda: codec.decode(message, out, base), batches),
    }
    return {"what": what} | times


def _microseconds(call: Callable[[], object], batches: int) -> float:
    """CPU time of a call, the median over batches of calls."""
    found = []
    for _ in range(batches):
        began = time.thread_time()
        for _ in range(CALLS):
            call()
        found.append((time.thread_time() - began) / CALLS)
    return 1e6 * median(found)


TABLE = Table(
    "calls",
    "Calls on small messages",
    "Microseconds of CPU time that `Exact` takes for a message of 4 KiB on one core, Python included: of normal BF16 "
    "numbers, and of numbers relative to ones that are half a percent smaller.",
    (("message", "what", ""), ("encode", "encode", ".1f"), ("decode", "decode", ".1f")),
    measure,
)
