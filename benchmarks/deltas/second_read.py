"""What it costs `compress` to read a base once more, which shows that nobody wrote to it meanwhile.

`python -m benchmarks.deltas.second_read` writes benchmarks/results/second-read.json: how many times as long `compress`
with a base takes as `FrameEncoder`, which trusts its base, on each CPU target and for each share of changed words; and
what is left of it for a caller who knows the base's hash (`base_hash`). All run on one thread, in turns.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import numpy as np

import tensorwire
from benchmarks.environment import on_each_target
from benchmarks.results_page import keep_rows
from benchmarks.timing import interleave, timed
from tensorwire import codec
from tensorwire._ground.allocation import new_buffer

NUMEL = 1 << 25
CHANGED = (0.001, 0.018, 0.5)
ROUNDS = 31


def _measure(share: float) -> tuple[float, float]:
    """Median quotients of times: `compress` to encoder, and `compress` that knows the base's hash to `compress`."""
    random = np.random.default_rng(1)
    words = random.standard_normal(NUMEL, dtype=np.float32).view(np.uint32) >> 16
    base = words.astype(np.uint16)
    content = base + (random.random(NUMEL) < share).astype(np.uint16)
    out = new_buffer(tensorwire.compress_bound(content, dtype="BF16"))

    def encode() -> None:
        encoder = codec.FrameEncoder("BF16", (NUMEL,), relative=True, threads=1)
        encoder.encode(content, out, base=base.data)
        encoder.finish()

    def compress() -> None:
        tensorwire.compress(content, dtype="BF16", base=base, out=out, threads=1)

    def known() -> None:
        tensorwire.compress(content, dtype="BF16", base=base, base_hash=base_hash, out=out, threads=1)

    base_hash = codec.content_hash(base.data)

    calls = {"compress": compress, "encode": encode, "known": known}
    operations = {name: lambda call=call: timed(call)[0] for name, call in calls.items()}
    warm_up = {name: operation() for name, operation in operations.items()}
    times = interleave(operations, warm_up, ROUNDS, float("inf"))

    def quotient(one: str, other: str) -> float:
        return statistics.median((a or 0) / (b or 1) for a, b in zip(times[one], times[other], strict=True))

    return quotient("compress", "encode"), quotient("known", "compress")


def measure() -> list[tuple[float, float]]:
    """The same for each share."""
    return [_measure(share) for share in CHANGED]


def main() -> None:
    rows = [
        {"cpu": cpu, "times": [each for each, _ in found], "known": [each for _, each in found]}
        for cpu, found in on_each_target(measure).items()
    ]
    heads = [f"{share:.1%} changed: times as long; with base_hash" for share in CHANGED]
    columns = [("CPU target", "cpu", ""), *((head, partial(_cell, place)) for place, head in enumerate(heads))]
    keep_rows("second-read", "python -m benchmarks.deltas.second_read", rows, columns, changed=CHANGED)


def _cell(place: int, row: dict[str, Any]) -> str:
    return f"{row['times'][place]:.2f}; {row['known'][place]:.2f}"


if __name__ == "__main__":
    main()
