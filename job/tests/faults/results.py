"""Runs as JSON, one to a line, and the tables made of them."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.environment import ROOT
from tensorwire_job.model import Confidence

from .cases import CASES, Case
from .levels import count
from .run import Outcome, show
from .runs import Row, Runs, commits, interval, left

if TYPE_CHECKING:
    from pathlib import Path

JSON = ROOT / "job" / "benchmarks" / "results" / "diagnosis-faults.json"
_MORE = 3  # complaints shown of a case
_CLASSES = ("TW-LOST", "TW-H1", "TW-H2", "TW-H3", "TW-S1", "TW-S2", "TW-S3")
_GROUPS = (
    ("all hangs", ("hang",), "all"),
    ("all slow", ("slow",), "95 %"),
    ("all faults", ("lost", "hang", "slow"), ""),
    ("nothing wrong", ("none",), "all"),
)  # with the kinds of cases in each, and what is aimed at


class Results(Runs):
    """Runs of the cases of cases.py."""

    def __init__(self, path: Path, environment: dict[str, Any], *, fresh: bool = False) -> None:
        self.recorded: dict[str, list[int]] = {}  # by confidence, see levels.count: of the recordings
        super().__init__(path, environment, fresh=fresh)

    def load(self, known: dict[str, Any]) -> None:
        super().load(known)
        self.recorded = known["recorded"]

    def head(self) -> dict[str, Any]:
        return super().head() | {"recorded": self.recorded}

    def due(self, case: Case, num_runs: int) -> list[int]:
        """The ranks that a case has to befall yet, in turn, until it has had so many runs."""
        return left(self._of(case), map(case.rank, range(num_runs)))

    def add(self, case: Case, rank: int, *, seconds: float | None, wrong: str, levels: dict[str, bool]) -> None:
        """A run that was judged.

        Args:
            seconds: from the fault to the verdict.
            wrong: what was wrong with it; "" if nothing.
            levels: the confidence of its verdicts, see levels.levels_of.
        """
        row = {"case": case.name, "rank": rank, "seconds": seconds, "wrong": wrong, "levels": levels}
        self.append(self.rows, row)

    def keep(self, case: Case, rank: int, outcome: Outcome) -> str:
        """Add what came of a run; says it in a line."""
        self.add(case, rank, seconds=outcome.seconds, wrong=outcome.wrong, levels=outcome.levels)
        return show(case, outcome)

    def add_failed(self, case: Case, rank: int, reason: str) -> None:
        """A run that could not be judged. It does not count, and is due again."""
        self.append(self.failed, {"case": case.name, "rank": rank, "reason": reason})

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
            f"- {len(self.rows)} runs, at these commits: {commits(self.rows)}",
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
        lines += self.not_judged()
        return "\n".join(lines) + "\n"

    def _levels(self) -> list[str]:
        """How many verdicts of each confidence were right."""
        columns = (self.recorded, count(row["levels"] for row in self.rows))
        rows = [
            f"| {level.value} | " + " | ".join(_right(column.get(level.value, [0, 0])) for column in columns) + " |"
            for level in Confidence
        ]
        return [
            "",
            "## Confidence",
            "",
            "A run counts for each confidence that its verdicts had. The recordings, one of each case, are those that "
            "the analyzer is tested with; `python -m job.tests.faults --levels` analyzes them again. "
            "[Faults that the matrix did not have](diagnosis-unseen.md#confidence) have a table of their own.",
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


def _share(rows: list[Row]) -> str:
    right = sum(not row["wrong"] for row in rows)
    return f"{right}/{len(rows)} | {interval(right, len(rows))}"
