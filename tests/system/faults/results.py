"""Runs as JSON, one to a line, and the tables made of them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from math import sqrt
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.environment import ROOT
from tensorwire.diagnosis.model import Confidence

from .cases import CASES, Case
from .levels import count

if TYPE_CHECKING:
    from pathlib import Path

JSON = ROOT / "benchmarks" / "results" / "diagnosis-faults.json"
_MORE = 3  # complaints shown of a case
_Z = 1.959964  # of the 95 % interval
_CLASSES = ("TW-LOST", "TW-H1", "TW-H2", "TW-H3", "TW-S1", "TW-S2", "TW-S3")
_GROUPS = (
    ("all hangs", ("hang",), "all"),
    ("all slow", ("slow",), "95 %"),
    ("all faults", ("lost", "hang", "slow"), ""),
    ("nothing wrong", ("none",), "all"),
)  # with the kinds of cases in each, and what is aimed at
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
    """What was run so far, in this run of the program and those before. For any thread.

    Written whole after each run, so that the next one goes on where this one was cut off.

    Args:
        path: a .json file; the page is written beside it.
        environment: of the runs to come.
        fresh: forget earlier runs.

    Raises:
        ValueError: the file holds something else.
    """

    def __init__(self, path: Path, environment: dict[str, Any], *, fresh: bool = False) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.environment = environment
        self.rows: list[Row] = []
        self.failed: list[Row] = []
        self.skipped: dict[str, str] = {}
        self.recorded: dict[str, list[int]] = {}  # by confidence, see levels.count: of the recordings
        if not fresh and path.exists():
            try:
                known = json.loads(path.read_text())
                self.rows, self.failed, self.skipped = known["runs"], known["failed"], known["skipped"]
                self.recorded = known["recorded"]
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path} holds no results to add to ({error!r}); --fresh begins again") from None

    def due(self, case: Case, num_runs: int) -> list[int]:
        """The ranks that a case has to befall yet, in turn, until it has had so many runs."""
        had = Counter(row["rank"] for row in self._of(case))
        ranks = []
        for rank in map(case.rank, range(num_runs)):
            if had[rank]:
                had[rank] -= 1
            else:
                ranks.append(rank)
        return ranks

    def add(self, case: Case, rank: int, *, seconds: float | None, wrong: str, levels: dict[str, bool]) -> None:
        """A run that was judged.

        Args:
            seconds: from the fault to the verdict.
            wrong: what was wrong with it; "" if nothing.
            levels: the confidence of its verdicts, see levels.levels_of.
        """
        row = {"case": case.name, "rank": rank, "seconds": seconds, "wrong": wrong, "levels": levels}
        self._append(self.rows, row)

    def add_failed(self, case: Case, rank: int, reason: str) -> None:
        """A run that could not be judged. It does not count, and is due again."""
        self._append(self.failed, {"case": case.name, "rank": rank, "reason": reason})

    def _append(self, rows: list[Row], row: Row) -> None:
        with self._lock:
            rows.append({**row, "commit": self.environment["commit"]})
            self.write()

    def write(self) -> None:
        known = {"environment": self.environment, "skipped": self.skipped, "failed": self.failed}
        known["recorded"] = self.recorded
        head = json.dumps(known, indent=1)[:-2]
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
            f"- Last added to {facts['date']}, by `{facts['command']}`",
            f"- {len(self.rows)} runs, at these commits: {_commits(self.rows)}",
            "",
            "| case | what happens | expected | right | 95 % interval | seconds to the verdict |",
            "|---|---|---|---|---|---|",
        ]
        shown = [case for case in CASES if self._of(case)]
        lines += [self._line(case) for case in shown]
        lines += ["", "| class | right | 95 % interval | goal |", "|---|---|---|---|"]
        for code in _CLASSES:
            rows = self._of(*(case for case in CASES if case.code == code))
            lines.append(f"| {code} | {_share(rows)} | |")
        for title, kinds, goal in _GROUPS:
            rows = self._of(*(case for case in CASES if case.kind in kinds))
            lines.append(f"| {title} | {_share(rows)} | {goal} |")
        wrong = {case.name: [row for row in self._of(case) if row["wrong"]] for case in shown}
        if any(wrong.values()):
            lines += ["", "## Wrong", ""]
        for name, rows in wrong.items():
            lines += [f"- {name}, fault at rank {row['rank']}: {row['wrong']}" for row in rows[:_MORE]]
            if len(rows) > _MORE:
                lines.append(f"- {name}: {len(rows) - _MORE} more")
        lines += self._levels()
        if self.failed:
            lines += ["", "## Not judged", "", "These runs failed before there was anything to judge.", ""]
            lines += [f"- {row['case']}, fault at rank {row['rank']}: {row['reason']}" for row in self.failed]
        if self.skipped:
            lines += ["", "## Skipped", ""]
            lines += [f"- {name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines) + "\n"

    def _levels(self) -> list[str]:
        """How many verdicts of each confidence were right."""
        judged = [row["levels"] for row in self.rows if "levels" in row]
        columns = (self.recorded, count(judged))
        rows = [
            f"| {level.value} | " + " | ".join(_right(column.get(level.value, [0, 0])) for column in columns) + " |"
            for level in Confidence
        ]
        return [
            "",
            "## Confidence",
            "",
            "A run counts for each confidence that its verdicts had. The recordings, one of each case, are those that "
            "the analyzer is tested with; `python -m tests.system.faults --levels` analyzes them again. Of "
            f"the {len(self.rows)} runs above {len(judged)} say which confidence their verdicts had: runs of before "
            "there were three levels do not. Not measured on faults that the matrix does not have.",
            "",
            "| confidence | right, in the recordings | right, in the runs |",
            "|---|---|---|",
            *rows,
        ]

    def _of(self, *cases: Case) -> list[Row]:
        names = {case.name for case in cases}
        return [row for row in self.rows if row["case"] in names]

    def _line(self, case: Case) -> str:
        rows = self._of(case)
        times = sorted(row["seconds"] for row in rows if row["seconds"] is not None)
        latency = f"{median(times):.1f} (at most {times[-1]:.1f})" if times else "-"
        return f"| {case.name} | {case.about} | {case.code or 'nothing'} | {_share(rows)} | {latency} |"


def _right(counted: list[int]) -> str:
    right, told = counted
    return f"{right} of {told}" if told else "not measured"


def _commits(rows: list[Row]) -> str:
    return ", ".join(f"{commit} ({number})" for commit, number in Counter(row["commit"] for row in rows).items())


def _share(rows: list[Row]) -> str:
    right = sum(not row["wrong"] for row in rows)
    low, high = wilson(right, len(rows))
    return f"{right}/{len(rows)} | {100 * low:.1f}-{100 * high:.1f} %"
