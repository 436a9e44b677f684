"""Measure deltas and write the results: python -m benchmarks.deltas [--quick]; `make deltas` runs it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from benchmarks import environment, summary
from benchmarks.deltas import pairs, report
from benchmarks.deltas.contest import measure

OURS = ("relative fast", "relative compact", "plain fast", "plain compact")
# Peers that are fast enough for a pair that no cache holds; the yardsticks first.
QUICK_PEERS = ("memcpy", "BitX", "index + value", "XOR, zstd 1", "gap + XOR, zstd 1")
BUDGET = 3.0


@dataclass(frozen=True)
class Contest:
    """What to measure on one pair.

    Attributes:
        units: "whole": all tensors as one; "tensor": one after the other.
        codecs: names of adapters; all of them if there is none.
        rounds: how many.
        forced: CPU targets on which ours are measured too.
    """

    units: tuple[str, ...] = ("whole", "tensor")
    codecs: tuple[str, ...] = ()
    rounds: int = 5
    forced: tuple[str, ...] = ("avx2",)


# Binary diffs take minutes on a pair of which most words changed.
FAR = Contest(codecs=(*QUICK_PEERS, "XOR, zstd 3", "XOR, ZipNN", *OURS))
LARGE = Contest(units=("whole",), codecs=(*QUICK_PEERS, *OURS))
FULL = {
    **dict.fromkeys(pairs.NEAR, Contest()),
    **dict.fromkeys(pairs.FAR, FAR),
    **dict.fromkeys(pairs.SYNTHETIC, LARGE),
    pairs.UNRELATED: Contest(codecs=OURS, rounds=3, forced=()),
}
QUICK = {"5e-6": Contest(codecs=(*QUICK_PEERS, *OURS), rounds=3), "synthetic-dense": Contest(("whole",), OURS, 3, ())}


def run(plan: dict[str, Contest], facts: dict[str, Any]) -> dict[str, Any]:
    """The results: environment, pairs, rows."""
    results: dict[str, Any] = {"environment": facts, "pairs": [], "rows": []}
    for name, contest in plan.items():
        environment.log(name)
        found = _measure(name, contest, contest.codecs)
        results["pairs"].append(found["pair"])
        results["rows"] += _rows(name, found["rows"])
        best = next(row["cpu"] for row in found["rows"] if row["codec"] == OURS[0])
        for target in contest.forced if best not in contest.forced else ():
            environment.log(f"{name} on {target}")
            forced = _measure(name, contest, ("memcpy", "BitX", *OURS[:2]), TENSORWIRE_CPU=target)["rows"]
            # A CPU that lacks the target falls back: those rows say nothing new.
            results["rows"] += [{**row, "forced_cpu": target} for row in _rows(name, forced) if row["cpu"] == target]
    return summary.rounded(results)


def _measure(name: str, contest: Contest, codecs: tuple[str, ...], **variables: str) -> dict[str, Any]:
    settings = (name, contest.units, codecs, contest.rounds, BUDGET)
    return environment.asked(measure, *settings, **environment.ALLOCATOR, **variables)


def _rows(pair: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each codec and setting, with both units."""
    by_tensor = {(row["codec"], row["verify"]): row for row in rows if row["unit"] == "tensor"}
    return [_row(pair, row, by_tensor.get((row["codec"], row["verify"]))) for row in rows if row["unit"] == "whole"]


def _row(pair: str, whole: dict[str, Any], tensor: dict[str, Any] | None) -> dict[str, Any]:
    row = {"pair": pair, **{key: whole[key] for key in ("codec", "version", "verify", "cpu", "nbytes")}}
    directions = [direction for direction in ("encode", "apply", "in_place") if direction in whole]
    for direction in directions:
        row[direction] = summary.medians(whole[direction], ("vs_memcpy", "vs_bitx"))
    if tensor:
        medians = {direction: tensor[direction]["median"] for direction in directions}
        row["by_tensor"] = {"nbytes": tensor["nbytes"], **medians}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two pairs, few rounds, into build/bench")
    options = parser.parse_args()
    output = environment.folder(quick=options.quick)
    results = run(QUICK if options.quick else FULL, environment.describe("make deltas", output))
    report.PAGE.keep(results, output)
