"""Runs as JSON, one to a line, and the table made of them."""

from __future__ import annotations

import json
import threading
from math import sqrt
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.environment import ROOT

from .cases import CASES, Case

if TYPE_CHECKING:
    from pathlib import Path

JSON = ROOT / "benchmarks" / "results" / "diagnosis-faults.json"
_MORE = 3  # complaints shown of a case
_Z = 1.959964  # of the 95 % interval
Row = dict[str, Any]


def wilson(right: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927): also sensible where all or none are right."""
    if total == 0:
        return 0.0, 1.0
    share, z2 = right / total, _Z * _Z
    centre = share + z2 / (2 * total)
    reach = _Z * sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    return max(0.0, (centre - reach) / (1 + z2 / total)), min(1.0, (centre + reach) / (1 + z2 / total))


class Results:
    """What was run so far. Written whole after each run, so that one that is cut off can go on. For any thread."""

    def __init__(self, path: Path, environment: dict[str, Any], *, resume: bool) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.environment = environment
        self.rows: list[Row] = []
        self.skipped: dict[str, str] = {}
        if resume and path.exists():
            self.rows = json.loads(path.read_text())["runs"]

    def count(self, case: Case) -> int:
        return sum(row["case"] == case.name for row in self.rows)

    def add(self, row: Row) -> None:
        with self._lock:
            self.rows.append(row)
            self.write()

    def write(self) -> None:
        head = json.dumps({"environment": self.environment, "skipped": self.skipped}, indent=1)[:-2]
        rows = ",\n".join(json.dumps(row) for row in self.rows)
        new = self._path.with_suffix(".new")
        new.write_text(f'{head},\n "runs": [\n{rows}\n]}}\n')
        new.replace(self._path)
        self._path.with_suffix(".md").write_text(self.page())

    def page(self) -> str:
        facts = self.environment
        lines = [
            "# Faults in real jobs",
            "",
            "Jobs of 4 ranks on gloo, on one machine; the faulty rank is rotated over all positions. A run is right "
            "where the class *and* the ranks are as they should be, in everything that is found from the fault on; "
            "where nothing is wrong, it is right if nothing is found.",
            "",
            f"- Machine: {facts['cpu']}, {facts['cores']} cores, {facts['memory']}; {facts['system']}",
            f"- Python {facts['python']}, torch {facts['versions']['torch']}; load average at the start "
            f"{facts['load']:.2f}",
            f"- Thresholds: {facts['thresholds']}",
            f"- {facts['date']}, commit {facts['commit']}, `{facts['command']}`",
            "",
            "| case | what happens | expected | right | 95 % interval | seconds to the verdict |",
            "|---|---|---|---|---|---|",
        ]
        shown = [case for case in CASES if self.count(case)]
        lines += [self._line(case) for case in shown]
        lines += ["", "| kind | right | 95 % interval |", "|---|---|---|"]
        for kind, title in (("lost", "lost"), ("hang", "hangs"), ("slow", "slow"), ("none", "nothing wrong")):
            names = {case.name for case in shown if case.kind == kind}
            rows = [row for row in self.rows if row["case"] in names]
            lines.append(f"| {title} | {_share(rows)} |")
        wrong = [case for case in shown if any(row["wrong"] for row in self.rows if row["case"] == case.name)]
        if wrong:
            lines += ["", "## Wrong", ""]
            for case in wrong:
                rows = [row for row in self.rows if row["case"] == case.name and row["wrong"]]
                lines += [f"- {case.name}, fault at rank {row['rank']}: {row['wrong']}" for row in rows[:_MORE]]
                if len(rows) > _MORE:
                    lines.append(f"- {case.name}: {len(rows) - _MORE} more")
        if self.skipped:
            lines += ["", "## Skipped", ""]
            lines += [f"- {name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines) + "\n"

    def _line(self, case: Case) -> str:
        rows = [row for row in self.rows if row["case"] == case.name]
        times = sorted(row["seconds"] for row in rows if row["seconds"] is not None)
        latency = f"{median(times):.1f} (at most {times[-1]:.1f})" if times else "-"
        return f"| {case.name} | {case.about} | {case.code or 'nothing'} | {_share(rows)} | {latency} |"


def _share(rows: list[Row]) -> str:
    right = sum(not row["wrong"] for row in rows)
    low, high = wilson(right, len(rows))
    return f"{right}/{len(rows)} | {100 * low:.1f}-{100 * high:.1f} %"
