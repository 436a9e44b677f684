"""Contenders that each have the machine for themselves: loading, the first token, memory, bytes read from disk."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from benchmarks.environment import log
from benchmarks.inference.bandwidth import CHUNK, disk_gbs
from benchmarks.inference.contenders import CONTENDERS, NOT_RUN
from benchmarks.inference.memory import GIB, forget_files, limited
from benchmarks.inference.plan import REFERENCE
from benchmarks.inference.process import ContenderError, Process
from benchmarks.timing import spread

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.inference.model import Paths, Size
    from benchmarks.inference.plan import Plan

THREADS = 2
Row = dict[str, Any]


def run_alone(plan: Plan, size: Size, paths: Paths, limit: int | None) -> list[Row]:
    """A row for each contender. Contenders with repeats take turns, so that a disturbance hits all of them."""
    runs: dict[str, list[Row]] = {name: [] for name in plan.alone}
    for turn in range(max([1, *plan.repeats.values()])):
        for name in plan.alone:
            if turn < plan.repeats.get(name, 1):
                log(f"{size.name}: {name}")
                runs[name].append(_one(name, plan, size, paths, limit))
    reference = next((run for run in runs[plan.reference] if "digests" in run), {"digests": [], "answer": []})
    rows = [_row(name, found, reference) for name, found in runs.items()]
    return rows + [{"contender": name, "error": why} for name, why in NOT_RUN.items()]


def disk(paths: Paths) -> float:
    """GB/s of reading a shard that is not in the page cache."""
    return disk_gbs(next(iter(sorted(paths.dense.glob("*.safetensors")))), GIB)


def _one(name: str, plan: Plan, size: Size, paths: Paths, limit: int | None) -> Row:
    contender = CONTENDERS[name]
    if not contender.installed:
        return {"error": f"{contender.package} is not installed"}
    files = paths.dense if contender.profile is None else paths.compressed(contender.profile)
    _into_page_cache(files) if limit is None else forget_files(files)
    start = time.perf_counter()
    try:
        with (
            nullcontext() if limit is None else limited(limit) as group,
            Process(name, size.name, paths.folder, THREADS, limit=group) as process,
        ):
            found = {**_measure(process, name, plan), "cgroup_peak": group and group.peak()}
    except ContenderError as failure:
        return {"error": str(failure), "wall": time.perf_counter() - start}
    return {**found, "wall": time.perf_counter() - start}


def _measure(process: Process, name: str, plan: Plan) -> Row:
    loaded = process("load")
    peak = process("peak")["peak"]
    row: Row = {"load": loaded["seconds"], "imported": loaded["imported"]}
    resident = process("forget_peak")["resident"] if name == REFERENCE else None
    first = process("prompt", length=plan.prompt)
    after = process("tokens", count=plan.tokens, budget=plan.budget)
    last = process("peak")["peak"]
    row |= {"first": first["seconds"], "tokens": after["seconds"], "read": after["read"], "first_read": first["read"]}
    row |= {"peak": max(peak, last), **process("answer")}
    if resident is not None:
        row["activations"] = last - resident
    return row


def _row(name: str, runs: list[Row], reference: Row) -> Row:
    failed = next((run for run in runs if "error" in run), None)
    if failed:
        return {"contender": name, **failed}
    comparable = bool(reference["digests"]) and CONTENDERS[name].exact
    totals = [run["load"] + run["first"] for run in runs]
    row: Row = {
        "contender": name,
        "threads": THREADS,
        "load": spread([run["load"] for run in runs]),
        "load_to_first": spread(totals),
        "load_to_first_by_run": totals,
        "first": spread([run["first"] for run in runs]),
        "token": spread([seconds for run in runs for seconds in run["tokens"]]),
        "wall": runs[0]["wall"],
        "imported_nbytes": runs[0]["imported"],
        "peak_nbytes": max(run["peak"] - run["imported"] for run in runs),
        "cgroup_peak_nbytes": runs[0]["cgroup_peak"],
        "read_nbytes_a_token": runs[0]["read"],
        "compared": min(len(reference["answer"]), len(runs[0]["answer"])),
        "same_tokens": common(runs[0]["answer"], reference["answer"]),
        "same_logits": all(same(run["digests"], reference["digests"]) for run in runs) if comparable else None,
    }
    if "activations" in runs[0]:
        row["activations_nbytes"] = runs[0]["activations"]
    return row


def same(digests: list[str], reference: list[str]) -> bool | None:
    """Whether logits are those of the reference as far as both go; None where there is nothing to compare."""
    pairs = list(zip(digests, reference, strict=False))
    return all(one == other for one, other in pairs) if pairs else None


def common(answer: list[int], reference: list[int]) -> int:
    """How many tokens are those of the reference before the first one that is not."""
    pairs = enumerate(zip(answer, reference, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(answer), len(reference)))


def _into_page_cache(directory: Path) -> None:
    buffer = bytearray(CHUNK)
    for path in directory.iterdir():
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
