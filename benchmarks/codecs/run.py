"""Measure everything and write the results: python -m benchmarks.codecs.run [--quick]; `make bench` runs it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import commands, data, enec, environment, report, sparsity, summary, targets

BUSY = 0.5


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        datasets: names, how many rounds, and the budget: seconds for one codec in one direction.
        units: as for the contest.
        forced: CPU targets on which ours are measured too, and on which data sets.
        enec_blocks: how many blocks of each data set are searched.
        files: the data set of the whole-file rows.
        file_rounds: how many rounds these take.
        sparse_words: words of each tensor with zeros or odd exponents.
        sparse_rounds: how many rounds these take.
    """

    datasets: dict[str, tuple[int, float]]
    units: tuple[str, ...]
    forced: dict[str, tuple[str, ...]]
    enec_blocks: int
    files: str
    file_rounds: int
    sparse_words: int
    sparse_rounds: int


FULL = Plan(
    datasets={
        "minilm-bf16": (11, 3.0),
        "minilm-f16": (11, 3.0),
        "minilm-f32": (7, 3.0),
        "minilm-bf16-in-f32": (7, 3.0),
        "minilm-f8-e4m3": (7, 3.0),
        "minilm-f8-e5m2": (7, 3.0),
        "synthetic-bf16": (5, 10.0),
    },
    units=("whole", "tensor"),
    forced={"avx2": ("minilm-bf16", "minilm-f16", "minilm-f32", "minilm-f8-e4m3", "synthetic-bf16")},
    enec_blocks=100,
    files="synthetic-bf16",
    file_rounds=7,
    sparse_words=sparsity.WORDS,
    sparse_rounds=5,
)
QUICK = Plan(
    datasets={"minilm-bf16": (3, 0.5), "synthetic-bf16-small": (3, 0.5)},
    units=("whole",),
    forced={"avx2": ("minilm-bf16",)},
    enec_blocks=20,
    files="synthetic-bf16-small",
    file_rounds=3,
    sparse_words=1 << 20,
    sparse_rounds=1,
)


def run(plan: Plan, directory: Path, command: str) -> dict[str, Any]:
    """The results: environment, data sets, rows, sizes of enec, whole files."""
    facts = environment.describe(command)
    facts["load"] = environment.load()
    if facts["load"] > BUSY:
        _log(f"note: the load average is {facts['load']:.2f}; figures from a busy machine mean little")
    results: dict[str, Any] = {"environment": facts, "datasets": [], "rows": []}
    for name in plan.datasets:
        _log(name)
        found = _contest(name, plan, ["--threads", "1", "2", "--units", *plan.units])
        results["datasets"].append(found["dataset"])
        results["rows"] += found["rows"]
    best = next(row["cpu"] for row in results["rows"] if row["codec"] == "tensorwire fast")
    for target, names in plan.forced.items():
        for name in names if target != best else ():
            _log(f"{name} on {target}")
            rows = _contest(name, plan, ["--ours"], TENSORWIRE_CPU=target)["rows"]
            # A CPU that lacks the target falls back: those rows say nothing new.
            results["rows"] += [{**row, "forced_cpu": target} for row in rows if row["cpu"] == target]
    _log("enec against exact counts")
    results["enec"] = {name: enec.sizes(data.load(name), plan.enec_blocks) for name in plan.datasets}
    _log("sparse words")
    results["sparsity"] = sparsity.run(sparsity.MAKERS, plan.sparse_words, plan.sparse_rounds)
    _log("whole files")
    results["files"] = commands.run(directory, plan.files, plan.file_rounds)
    return results


def _contest(name: str, plan: Plan, options: list[str], **variables: str) -> dict[str, Any]:
    """In a process of its own: a peer's crash, its memory and its threads end with it."""
    line = [sys.executable, "-m", "benchmarks.codecs.contest", name]
    rounds, budget = plan.datasets[name]
    line += ["--rounds", str(rounds), "--budget", str(budget), *options]
    env = environment.child(**environment.ALLOCATOR, **variables)
    output = subprocess.run(line, check=True, stdout=subprocess.PIPE, env=env).stdout
    found: dict[str, Any] = json.loads(output)
    return found


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two small data sets, few rounds, in about a minute")
    parser.add_argument(
        "--output", type=Path, help="folder of the results; by default benchmarks/results, quick build/bench"
    )
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where large files go")
    options = parser.parse_args()
    command = "python -m benchmarks --quick" if options.quick else "make bench"
    measured = run(QUICK if options.quick else FULL, options.directory, command)
    every_figure = environment.ROOT / "build" / "bench" / "measured.json"
    every_figure.parent.mkdir(parents=True, exist_ok=True)
    every_figure.write_text(json.dumps(measured) + "\n")
    output = options.output or (every_figure.parent if options.quick else environment.ROOT / "benchmarks" / "results")
    results = summary.summarize(measured)
    output.mkdir(parents=True, exist_ok=True)
    (output / "codecs.json").write_text(summary.dumps(results))
    report.write(output)
    print(targets.render(targets.evaluate(results)))


if __name__ == "__main__":
    main()
