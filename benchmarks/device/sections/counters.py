"""What Nsight Compute says of the kernels: what to do next."""

from __future__ import annotations

import csv
import re
import sys
from typing import TYPE_CHECKING

from benchmarks.device import tools
from benchmarks.device.runner import Row, Section

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench

_STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
METRICS = {
    "microseconds": "gpu__time_duration.sum",
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "instructions": "smsp__inst_executed.sum",
    "on_loads": _STALLED.format("long_scoreboard"),
    "on_shared": _STALLED.format("short_scoreboard"),
    "on_barriers": _STALLED.format("barrier"),
    "on_math": _STALLED.format("math_pipe_throttle"),
    "on_queues": _STALLED.format("lg_throttle"),
}
_NUMBER = re.compile(r"[0-9.]+(e[-+]?[0-9]+)?")
_TO_MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
_OURS = (
    "cascade", "copy", "count", "enec", "fill", "high", "list", "open", "resident", "resolve", "take", "thin",
    "wgmma",
)  # fmt: skip
"""How names of our kernels begin; torch's own are in namespaces."""
_SIZE = ("14336", "4096")


def run(bench: Bench) -> Generator[Row, None, None]:
    ncu = tools.find("ncu")
    if ncu is None:
        yield {"what": "ncu", "error": "it is not here"}
        return
    for profile, dtype in (("resident", "BF16"), ("fast", "BF16"), ("enec", "BF16"), ("resident", "F16")):
        line = [ncu, "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"]
        line += ["--profile-from-start", "off"]
        line += ["--metrics", ",".join(METRICS.values())]
        line += ["--kernel-name-base", "function", "--kernel-name", f"regex:^({'|'.join(_OURS)})"]
        line += [sys.executable, "-m", "benchmarks.device.once", profile, *_SIZE, dtype]
        code, text = tools.output(line, bench.left)
        found, what = rows(text), profile if dtype == "BF16" else f"{profile}, {dtype}"
        yield from ({"what": what, **row} for row in found)
        if not found:
            yield {"what": what, "error": f"exit code {code}: {text[-600:]}"}


def rows(text: str) -> list[Row]:
    """What ncu prints, as rows: it has other lines, then one of heads, one of units, and one for each kernel."""
    table = [line for line in text.splitlines() if line.startswith('"')]
    if len(table) < 3:
        return []
    heads, units, *values = list(csv.reader(table))
    found = []
    for each in values:
        cells = dict(zip(heads, each, strict=False))
        row: Row = {"kernel": cells.get("Kernel Name", "").partition("(")[0]}
        for name, metric in METRICS.items():  # some of which this ncu, or this card, may not know
            number = cells.get(metric, "").replace(",", "")
            if _NUMBER.fullmatch(number):
                row[name] = float(number)
        if "microseconds" in row:
            unit = dict(zip(heads, units, strict=False)).get(METRICS["microseconds"], "ns")
            row["microseconds"] *= _TO_MICROSECONDS.get(unit, 1e-3)
        found.append(row)
    return found


SECTION = Section(
    "counters",
    35,
    "What do the kernels wait for?",
    "Nsight Compute, a matrix of 14336 x 4096, opened and multiplied with one input and with 32. "
    "Memory, caches of processors, issue slots "
    "and warps in percent of the most that is possible. The last columns are warps that wait, for each instruction "
    "that is issued.",
    (
        ("profile", "what", ""), ("kernel", "kernel", ""), ("µs", "microseconds", ".1f"), ("memory", "dram", ".0f"),
        ("L1", "l1", ".0f"), ("issue", "issue", ".0f"), ("warps", "warps", ".0f"), ("registers", "registers", ".0f"),
        ("for loads", "on_loads", ".2f"), ("for shared memory", "on_shared", ".2f"),
        ("at barriers", "on_barriers", ".2f"), ("for arithmetic", "on_math", ".2f"),
        ("for queues of loads", "on_queues", ".2f"), ("error", "error", ""),
    ),
    run,
)  # fmt: skip
