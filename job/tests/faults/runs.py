"""Runs that were made so far, kept as JSON, one to a line, with a page of tables beside it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from math import sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

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


def left(rows: list[Row], ranks: Iterable[int]) -> list[int]:
    """The ranks that something has to befall, and has not befallen in these rows."""
    had = Counter(row["rank"] for row in rows)
    due = []
    for rank in ranks:
        if had[rank]:
            had[rank] -= 1
        else:
            due.append(rank)
    return due


class Runs:
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
        if not fresh and path.exists():
            try:
                self.load(json.loads(path.read_text()))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path} holds no results to add to ({error!r}); --fresh begins again") from None

    def load(self, known: dict[str, Any]) -> None:
        self.rows, self.failed, self.skipped = known["runs"], known["failed"], known["skipped"]

    def head(self) -> dict[str, Any]:
        """What the file says besides the runs."""
        return {"environment": self.environment, "skipped": self.skipped, "failed": self.failed}

    def page(self) -> str:
        """Markdown."""
        raise NotImplementedError

    def append(self, rows: list[Row], row: Row) -> None:
        with self._lock:
            rows.append({**row, "commit": self.environment["commit"]})
            self.write()

    def write(self) -> None:
        head = json.dumps(self.head(), indent=1)[:-2]
        rows = ",\n".join(json.dumps(row) for row in self.rows)
        new = self._path.with_suffix(".new")
        new.write_text(f'{head},\n "runs": [\n{rows}\n]}}\n')
        new.replace(self._path)
        self._path.with_suffix(".md").write_text(self.page())

    def not_judged(self) -> list[str]:
        """The part of the page on what could not be run."""
        lines = []
        if self.failed:
            lines += ["", "## Not judged", "", "These runs failed before there was anything to judge.", ""]
            lines += [f"- {row['case']}, fault at rank {row['rank']}: {row['reason']}" for row in self.failed]
        if self.skipped:
            lines += ["", "## Skipped", ""]
            lines += [f"- {name}: {reason}" for name, reason in self.skipped.items()]
        return lines
