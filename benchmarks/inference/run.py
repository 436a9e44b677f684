"""Measure inference and write the results: python -m benchmarks.inference [--quick]; `make inference` runs it."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import environment, summary
from benchmarks.inference import report
from benchmarks.inference.alone import disk, run_alone
from benchmarks.inference.contenders import CONTENDERS
from benchmarks.inference.memory import GIB, limited
from benchmarks.inference.model import SIZES, Paths, prepare
from benchmarks.inference.plan import PLANS
from benchmarks.inference.turns import run_group

if TYPE_CHECKING:
    from collections.abc import Iterable

DATA = environment.ROOT / "build" / "inference"
PARTS = ("environment", "models", "alone", "turns", "bandwidth")
"""Lists of rows in the results; each row names its model."""


def measure(name: str, data: Path, limit: int | None, facts: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """All that is measured on one model."""
    plan, size, paths = PLANS[name], SIZES[name], Paths(data / name)
    found: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS}
    bf16 = bool(torch.cpu._is_avx512_bf16_supported())
    found["environment"].append({**facts, "avx512_bf16": bf16})
    found["models"].append(make(name, data))
    nbytes = plan.limit and (limit or plan.limit)
    if nbytes:
        try:
            with limited(nbytes):
                found["models"][0]["limit_nbytes"] = nbytes
        except OSError as error:
            environment.log(f"{name}: {error}; not measured")
            found["models"][0]["not_measured"] = str(error)
            return _named(name, found)
    found["alone"] = run_alone(plan, size, paths, nbytes)
    found["bandwidth"].append({"kind": "disk", "gbs": disk(paths)})
    for turns in plan.groups:
        rows, bandwidth = run_group(turns, size, paths)
        found["turns"] += rows
        found["bandwidth"] += bandwidth
    return _named(name, found)


def make(name: str, data: Path) -> dict[str, Any]:
    """What is missing of a model, in every form that is measured; return facts for the results."""
    environment.log(f"{name}: the model")
    size, paths = SIZES[name], Paths(data / name)
    facts = prepare(size, paths)
    for contender in (CONTENDERS[each] for each in sorted(PLANS[name].names())):
        if contender.make and contender.installed:
            contender.make(size, paths)
    return facts


def merged(old: dict[str, Any], new: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The rows of `new`, and of `old` those of other models."""
    kept = set(PLANS).difference(names)
    return {part: [row for row in old.get(part, ()) if row["model"] in kept] + new[part] for part in PARTS}


def _named(name: str, found: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {part: [{"model": name, **row} for row in rows] for part, rows in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny model, into build/bench; its figures mean nothing")
    parser.add_argument("--models", nargs="+", choices=PLANS, default=["1b", "12b"], help="others keep their results")
    parser.add_argument("--data", type=Path, default=DATA, help=f"folder of the models (default: {DATA.name} in build)")
    parser.add_argument("--make", action="store_true", help="make the models and measure nothing")
    parser.add_argument("--remove", action="store_true", help="remove each model once it is measured")
    parser.add_argument("--limit", type=float, help="of memory, in GiB, for models that have one (default: 18)")
    options = parser.parse_args()
    names = ["tiny"] if options.quick else options.models
    limit = None if options.limit is None else int(options.limit * GIB)
    if options.make:
        for name in names:
            make(name, options.data)
        return
    output = environment.folder(quick=options.quick)
    file = output / "inference.json"
    for name in names:
        new = summary.rounded(measure(name, options.data, limit, environment.describe("make inference", output)))
        old = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(summary.dumps(merged(old, new, [name])))
        if options.remove:
            shutil.rmtree(options.data / name)
    report.PAGE.write(output)
