"""What it costs `compress` to read a base once more, which shows that nobody wrote to it meanwhile.

`python -m benchmarks.deltas.second_read` writes benchmarks/results/second-read.json: how many times as long `compress`
with a base takes as `FrameEncoder`, which trusts its base, on each CPU target and for each share of changed words. Both
run on one thread, in turns.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import TYPE_CHECKING

import numpy as np

import tensorwire
from benchmarks.environment import RESULTS, describe, on_each_target
from benchmarks.timing import interleave, timed
from tensorwire import codec

if TYPE_CHECKING:
    from collections.abc import Callable

NUMEL = 1 << 25
CHANGED = (0.001, 0.018, 0.5)
ROUNDS = 31


def _measure(share: float) -> float:
    """The median quotient of the two times."""
    random = np.random.default_rng(1)
    words = random.standard_normal(NUMEL, dtype=np.float32).view(np.uint32) >> 16
    base = words.astype(np.uint16)
    content = base + (random.random(NUMEL) < share).astype(np.uint16)
    out = codec.new_buffer(tensorwire.compress_bound(content, dtype="BF16"))

    def encode() -> None:
        encoder = codec.FrameEncoder("BF16", (NUMEL,), relative=True, threads=1)
        encoder.encode(content, out, base=base)
        encoder.finish()

    def compress() -> None:
        tensorwire.compress(content, dtype="BF16", base=base, out=out, threads=1)

    def seconds_of(call: Callable[[], None]) -> Callable[[], float]:
        return lambda: timed(call)[0]

    operations = {"compress": seconds_of(compress), "encode": seconds_of(encode)}
    warm_up = {name: operation() for name, operation in operations.items()}
    times = interleave(operations, warm_up, ROUNDS, float("inf"))
    return statistics.median((a or 0) / (b or 1) for a, b in zip(times["compress"], times["encode"], strict=True))


def main() -> None:
    if sys.argv[1:] == ["--child"]:
        json.dump([_measure(share) for share in CHANGED], sys.stdout)
        return
    rows = []
    for cpu, times in on_each_target("benchmarks.deltas.second_read", "--child").items():
        rows.append({"cpu": cpu, "times": times})
        for share, quotient in zip(CHANGED, times, strict=True):
            print(f"{cpu}: {share:.1%} of the words changed: {quotient:.2f} times as long")
    facts = describe("python -m benchmarks.deltas.second_read")
    text = json.dumps({"environment": facts, "changed": CHANGED, "rows": rows}, indent=1) + "\n"
    (RESULTS / "second-read.json").write_text(text)


if __name__ == "__main__":
    main()
