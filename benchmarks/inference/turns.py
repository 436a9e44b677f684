"""Contenders that are in memory side by side and take turns, so that a disturbance of the machine hits all of them."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.environment import log
from benchmarks.inference.alone import same
from benchmarks.inference.bandwidth import predictions
from benchmarks.inference.contenders import CONTENDERS
from benchmarks.inference.plan import OWN, REFERENCE
from benchmarks.inference.process import AVX2, Process
from benchmarks.timing import spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.inference.model import Paths, Size
    from benchmarks.inference.plan import Group

Row = dict[str, Any]
Rounds = dict[str, list[float]]
"""Seconds by contender, one number for each round."""


def run_group(group: Group, size: Size, paths: Paths) -> tuple[list[Row], list[Row]]:
    """Rows of contenders, and rows of what memory and kernels do here."""
    cpu = "avx2" if group.avx2 else ""
    with ExitStack() as stack:
        variables = AVX2 if group.avx2 else {}

        def start(name: str) -> Process:
            process = Process(name, size.name, paths.folder, group.threads[0], variables)
            stack.callback(process.stop)
            return process

        log(f"{size.name}{cpu and ', ' + cpu}: {'; '.join(group.names)}")
        field = {name: start(name) for name in group.names if CONTENDERS[name].installed}
        memory = start("memory") if group.products else None
        for process in (*field.values(), *([memory] if memory else [])):
            stack.enter_context(process)
        for process in field.values():
            process("load")
        rows, bandwidth = [], []
        for threads in group.threads:
            log(f"{size.name}: taking turns on {threads} threads")
            found, read = _take_turns(group, field, memory, threads)
            rows += [{"cpu": cpu, "threads": threads, **row} for row in found]
            if read:
                bandwidth.append({"kind": "memory", "cpu": cpu, "threads": threads, **spread(read)})
        if memory:
            best = max(bandwidth, key=lambda row: row["threads"])
            bandwidth += [{"cpu": cpu, **row} for row in _kernels(memory, group, best["median"])]
    return rows, bandwidth


def _take_turns(
    group: Group, field: dict[str, Process], memory: Process | None, threads: int
) -> tuple[list[Row], list[float]]:
    for process in (*field.values(), *([memory] if memory else [])):
        process("threads", count=threads)
    for process in field.values():
        process("prompt", length=group.prompt)
    measured = {"token": _rounds(group.rounds, field, lambda process: _token(process, group.tokens))}
    digests = {name: process("answer")["digests"] for name, process in field.items()}
    read: list[float] = []
    nbytes = 0
    if memory:
        measured["products"] = {name: [] for name in field}
        for _ in range(group.rounds):
            read.append(memory("read")["gbs"])
            for name, process in field.items():
                process("products")  # after the others' turns the caches hold nothing of it
                found = process("products")
                measured["products"][name].append(found["seconds"])
                nbytes = found["nbytes"]
    if threads == max(group.threads):
        measured |= _extras(group, field)
    rows = [_row(name, field, measured, digests) for name in field]
    for row in rows if nbytes else ():
        row["products_gbs"] = nbytes / row["products"]["median"] / 1e9
    return rows, read


def _extras(group: Group, field: dict[str, Process]) -> dict[str, Rounds]:
    measured = {}
    if group.long_prompt:
        measured["prefill"] = _rounds(
            group.extra_rounds, field, lambda process: process("prompt", length=group.long_prompt)["seconds"]
        )
    if group.batch:
        for process in field.values():
            process("prompt", length=group.prompt, batch=group.batch)
        measured["batch"] = _rounds(group.extra_rounds, field, lambda process: _token(process, group.tokens))
    return measured


def _rounds(count: int, field: dict[str, Process], turn: Callable[[Process], float]) -> Rounds:
    seconds: Rounds = {name: [] for name in field}
    for _ in range(count):
        for name, process in field.items():
            seconds[name].append(turn(process))
    return seconds


def _token(process: Process, count: int) -> float:
    """Median seconds of a token; the first of a turn finds the caches full of what is another's, and does not count."""
    return median(process("tokens", count=1 + count)["seconds"][1:])


def _row(name: str, field: dict[str, Process], measured: dict[str, Rounds], digests: dict[str, list[str]]) -> Row:
    row: Row = {"contender": name}
    for what, seconds in measured.items():
        row[what] = spread(seconds[name])
        for other, key in ((REFERENCE, "vs_dense"), (OWN, "vs_own")):
            if other in field:
                quotients = [a / b for a, b in zip(seconds[name], seconds[other], strict=True)]
                row[what][key] = spread(quotients)["median"]
    other = REFERENCE if CONTENDERS[name].exact else OWN
    row["logits_of"] = other
    row["same_logits"] = same(digests[name], digests.get(other, []))
    return row


def _kernels(memory: Process, group: Group, read_gbs: float) -> list[Row]:
    """Cycles a word of the fused kernel, and what follows from them and from the bandwidth of memory."""
    rows = []
    profiles = {CONTENDERS[name].profile: None for name in group.names if name.startswith("fused")}
    for profile in profiles:
        kernel = memory("kernel", profile=profile)
        rows.append({"kind": "kernel", "profile": profile, **kernel, "predicted": predictions(kernel, read_gbs)})
    return rows
