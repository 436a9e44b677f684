"""Runs that were made so far, kept as JSON, one to a line, with a page of tables beside it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import asdict
from math import sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from .cases import Case
    from .verdicts import Judgement

FIRST, MENDED = "first", "mended"
STAGES = (FIRST, MENDED)
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


def interval(right: int, total: int) -> str:
    low, high = wilson(right, total)
    return f"{100 * low:.1f}-{100 * high:.1f} %"


def commits(rows: list[Row]) -> str:
    """The commits that runs were made at, with the number of runs."""
    return ", ".join(f"{commit} ({number})" for commit, number in Counter(row["commit"] for row in rows).items())


def machine(facts: dict[str, Any], besides: str = "") -> list[str]:
    """What the runs of a page were made on."""
    load = f"load average at the start {facts['load']:.2f}"
    return [
        f"- Machine: {facts['cpu']}, {facts['cores']} cores, {facts['memory']}; {facts['system']}",
        f"- Python {facts['python']}, torch {facts['versions']['torch']}; {load}",
        f"- Thresholds: {facts['thresholds']}{besides}",
        f"- Last added to {facts['date']}, by `{facts['command']}`",
    ]


class Results:
    """What was run so far, in this run of the program and those before. For any thread.

    Written whole after each run, so that the next one goes on where this one was cut off.

    Args:
        path: a .json file; the page is written beside it.
        environment: of the runs to come.
        make_page: Markdown.
        stage: of the runs to come: "first", before anyone tuned the analyzer to a case, or "mended", the code now.
        forget: names of cases whose runs of this stage are made again. First runs are kept for good.

    Raises:
        ValueError: the file holds something else.
    """

    def __init__(
        self,
        path: Path,
        environment: dict[str, Any],
        make_page: Callable[[Results], str],
        stage: str = MENDED,
        forget: Collection[str] = (),
    ) -> None:
        if stage == FIRST and forget:
            raise ValueError("first results are made once: they are not begun again")
        self._path, self._make_page, self._stage = path, make_page, stage
        self._lock = threading.Lock()
        self.environment = environment
        self.rows: list[Row] = []
        self.failed: list[Row] = []
        self.skipped: dict[str, str] = {}
        if path.exists():
            try:
                known = json.loads(path.read_text())
                self.rows = [row for row in known["runs"] if row["stage"] != stage or row["case"] not in forget]
                self.failed = [row for row in known["failed"] if row["case"] not in forget]
                self.skipped = known["skipped"]
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path} holds no results to add to: {error!r}") from None

    def due(self, case: Case, num_runs: int | None = None) -> list[int]:
        """The ranks that it has to befall yet, in turn, until it has had so many runs; by default each of its ranks."""
        number = len(case.ranks) if num_runs is None else num_runs
        had = Counter(row["rank"] for row in self._of(case))
        due = []
        for run in range(number):
            rank = case.ranks[run % len(case.ranks)]
            if had[rank]:
                had[rank] -= 1
            else:
                due.append(rank)
        return due

    def is_wrong(self, case: Case) -> bool:
        """Whether a run of this stage was."""
        return any(not row["right"] for row in self._of(case))

    def _of(self, case: Case) -> list[Row]:
        return [row for row in self.rows if row["case"] == case.name and row["stage"] == self._stage]

    def add(self, case: Case, rank: int, judged: Judgement) -> None:
        """A run that was judged."""
        self._append(self.rows, case, rank, **asdict(judged))

    def add_failed(self, case: Case, rank: int, reason: str) -> None:
        """A run that could not be judged. It does not count, and is due again."""
        self._append(self.failed, case, rank, reason=reason)

    def _append(self, rows: list[Row], case: Case, rank: int, **facts: Any) -> None:
        commit = self.environment["commit"]
        with self._lock:
            rows.append({"case": case.name, "rank": rank, "stage": self._stage, **facts, "commit": commit})
            self.write()

    def page(self) -> str:
        return self._make_page(self)

    def write(self) -> None:
        """Rows in one order, whichever was run first: results of two places are then easy to bring together."""
        self.rows.sort(key=lambda row: (row["case"], STAGES.index(row["stage"]), row["rank"]))
        facts = {"environment": self.environment, "skipped": self.skipped, "failed": self.failed}
        head = json.dumps(facts, indent=1)[:-2]
        rows = ",\n".join(json.dumps(row) for row in self.rows)
        new = self._path.with_suffix(".new")
        new.write_text(f'{head},\n "runs": [\n{rows}\n]}}\n')
        new.replace(self._path)
        self._path.with_suffix(".md").write_text(self.page())

    def not_judged(self) -> list[str]:
        """The parts of the page on what could not be run."""
        parts = []
        if self.failed:
            lines = [f"- {row['case']}, fault at rank {row['rank']}: {row['reason']}" for row in self.failed]
            parts += ["## Not judged", "These runs failed before there was anything to judge.", "\n".join(lines)]
        if self.skipped:
            parts += ["## Skipped", "\n".join(f"- {name}: {reason}" for name, reason in self.skipped.items())]
        return parts
