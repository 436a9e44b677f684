"""How long `Exact` takes for a message of 4 KiB."""

from __future__ import annotations

import torch

from benchmarks.tables import Row, Table
from benchmarks.timing import microseconds
from tensorwire.torch.traffic import Exact

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
        "encode": microseconds(lambda: codec.encode(values, base), batches, CALLS),
        "decode": microseconds(lambda: codec.decode(message, out, base), batches, CALLS),
    }
    return {"what": what} | times


TABLE = Table(
    "calls",
    "Calls on small messages",
    "Microseconds of CPU time that `Exact` takes for a message of 4 KiB on one core, Python included: of normal BF16 "
    "numbers, and of numbers relative to ones that are half a percent smaller.",
    (("message", "what", ""), ("encode", "encode", ".1f"), ("decode", "decode", ".1f")),
    measure,
)
