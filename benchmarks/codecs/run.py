"""Measure everything and write the results: python -m benchmarks.codecs [--quick]; `make bench` runs it."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from typing import Any

from benchmarks import data, environment, summary
from benchmarks.codecs import calls, commands, contest, enec, report, sparsity

BUSY = 0.5
AVX2 = ("avx2",)


@dataclass(frozen=True)
class Setting:
    """How one data set is measured.

    Attributes:
        rounds, budget: as for the contest; the budget is in seconds for one codec in one direction.
        units: as for the contest.
        peers: whether all of them take part, or memcpy and ZipNN alone.
        forced: CPU targets on which ours are measured too, beside memcpy and ZipNN.
    """

    rounds: int
    budget: float
    units: tuple[str, ...] = ("whole", "tensor")
    peers: bool = True
    forced: tuple[str, ...] = AVX2


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        datasets: names, and how they are measured.
        enec_blocks: how many blocks of each data set are searched, and of which data sets.
        calls: the data set of the public functions beside the core, and how many rounds.
        files: the data set of the whole-file rows, and how many rounds.
        sparse_words: words of each tensor with zeros or odd exponents.
        sparse_rounds: how many rounds these take.
    """

    datasets: dict[str, Setting]
    enec: tuple[str, ...]
    enec_blocks: int
    calls: str
    call_rounds: int
    files: str
    file_rounds: int
    sparse_words: int
    sparse_rounds: int


MINILM = ("minilm-bf16", "minilm-f16", "minilm-f32", "minilm-bf16-in-f32", "minilm-f8-e4m3", "minilm-f8-e5m2")
FULL = Plan(
    datasets={
        **dict.fromkeys(MINILM, Setting(7, 1.5)),
        **dict.fromkeys(data.LARGE, Setting(5, 2.5, units=("whole",), peers=False)),
    },
    enec=(*MINILM, "synthetic-bf16"),
    enec_blocks=100,
    calls="synthetic-bf16-small",
    call_rounds=11,
    files="synthetic-bf16",
    file_rounds=7,
    sparse_words=sparsity.WORDS,
    sparse_rounds=3,
)
QUICK = Plan(
    datasets={
        "minilm-bf16": Setting(3, 0.5, units=("whole",)),
        "synthetic-bf16-small": Setting(3, 0.5, units=("whole",), forced=()),
    },
    enec=("minilm-bf16",),
    enec_blocks=20,
    calls="synthetic-bf16-small",
    call_rounds=3,
    files="synthetic-bf16-small",
    file_rounds=3,
    sparse_words=1 << 20,
    sparse_rounds=1,
)


def run(plan: Plan, facts: dict[str, Any]) -> dict[str, Any]:
    """The results by part, and how long each part took."""
    if facts["load"] > BUSY:
        environment.log(f"note: the load average is {facts['load']:.2f}; figures from a busy machine mean little")
    results: dict[str, Any] = {"environment": facts, "datasets": [], "rows": []}
    clock = _Clock()
    for name, setting in plan.datasets.items():
        found = _contest(name, setting, yardsticks=not setting.peers)
        results["datasets"].append(found["dataset"])
        results["rows"] += found["rows"]
        clock.stop(name)
        for target in setting.forced:
            results["rows"] += _forced(name, setting, target, found["rows"])
            clock.stop(f"{name} on {target}")
    results["enec"] = {name: enec.sizes(data.load(name), plan.enec_blocks) for name in plan.enec}
    clock.stop("enec against exact counts")
    results["sparsity"] = sparsity.run(sparsity.MAKERS, plan.sparse_words, plan.sparse_rounds)
    clock.stop("sparse words and odd distributions")
    results["calls"] = calls.run(plan.calls, plan.call_rounds)
    clock.stop("public functions against the core")
    results["files"] = commands.run(plan.files, plan.file_rounds)
    clock.stop("whole files")
    results["parts"] = clock.parts
    return results


class _Clock:
    """How long each part of a run took."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self._start = time.monotonic()

    def stop(self, name: str) -> None:
        """The part that now ends has this name."""
        seconds, self._start = time.monotonic() - self._start, time.monotonic()
        self.parts.append({"part": name, "seconds": seconds})
        environment.log(f"{name}: {seconds:.0f} s")


def _forced(name: str, setting: Setting, target: str, best: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our rows on another CPU target than the best one; none if that is the one, or this CPU lacks it."""
    if any(row["cpu"] == target for row in best):
        return []
    rows = _contest(name, setting, yardsticks=True, TENSORWIRE_CPU=target)["rows"]
    return [{**row, "forced_cpu": target} for row in rows if row["cpu"] == target]


def _contest(name: str, setting: Setting, *, yardsticks: bool, **variables: str) -> dict[str, Any]:
    """With a forced CPU target one thread and one buffer will do."""
    units, threads = (["whole"], [1]) if variables else (setting.units, [1, 2])
    variables |= {**environment.ALLOCATOR, "PYTHONWARNINGS": "ignore"}
    settings = (name, units, threads, setting.rounds, setting.budget, yardsticks)
    return environment.asked(contest.measure, *settings, **variables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two small data sets, few rounds, in about a minute")
    options = parser.parse_args()
    command = "python -m benchmarks.codecs --quick" if options.quick else "make bench"
    folder = environment.folder(quick=options.quick)
    measured = run(QUICK if options.quick else FULL, environment.describe(command, folder))
    (environment.folder(quick=True) / "measured.json").write_text(json.dumps(measured) + "\n")
    report.PAGE.keep(summary.summarize(measured), folder)
