"""python -m job.tests.faults.together: what all runs of variants come to, beside what is aimed at."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.pages import table

from . import variant_page
from .runs import interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .runs import Row

_SETS = ("unseen", "second", "third")
_FAULTS = ("known", "fourth", *_SETS, "fifth")
_SHARES: tuple[tuple[str, Sequence[str], str, str, str], ...] = (
    ("known before: rank right", ("known",), "mended", "rank_right", "97 %"),
    ("sets 1 to 3, first: rank right", _SETS, "first", "rank_right", ""),
    ("sets 1 to 3, mended: rank right", _SETS, "mended", "rank_right", "90 %"),
    ("sets 1 to 3, mended: sides or several ranks, the right one among them", _SETS, "mended", "holds", ""),
    ("sets 1 to 3, mended: others named, and not the right rank", _SETS, "mended", "misnamed", "at most 3 %"),
    ("fifth set, first: found", ("fifth",), "first", "found", "all"),
    ("fifth set, first: one verdict, and no tie", ("fifth",), "first", "named", "75 %"),
    ("fifth set, first: of those, rank right", ("fifth",), "first", "right of those named", "95 %"),
    ("fifth set, first: class right", ("fifth",), "first", "class_right", "92 %"),
    ("all, mended: the same once the job is dead", _FAULTS, "mended", "same", "all"),
)


def main() -> None:
    from .variant_results import JSON

    parser = argparse.ArgumentParser(prog="python -m job.tests.faults.together", description=__doc__)
    parser.add_argument("files", type=Path, nargs="*", default=[JSON], help=f"results (default: {JSON.name})")
    rows = [row for path in parser.parse_args().files for row in json.loads(path.read_text())["runs"]]
    print(summary(rows))


def summary(rows: list[Row]) -> str:
    """A table in Markdown, of the runs of one file or several."""
    cells = [
        [title, _share(_answers(variant_page.with_faults(_of(rows, groups, stage)), key)), goal]
        for title, groups, stage, key, goal in _SHARES
    ]
    healthy = _of(rows, ("healthy",), "mended")
    looks, false = (sum(row[key] for row in healthy) for key in ("looks", "false_looks"))
    cells.append(["healthy jobs: looks without a finding", f"{looks - false:,} of {looks:,}", "all of 5,000"])
    return table(("runs with a fault", "share, and 95 % interval", "goal"), cells)


def _of(rows: list[Row], groups: Iterable[str], stage: str) -> list[Row]:
    return [row for group in groups for row in variant_page.of_stage(rows, group, stage)]


def _answers(rows: list[Row], key: str) -> list[bool]:
    """The answers of the runs that have one: earlier runs were not asked for all."""
    named = [row["found"] and not row["tie"] and not row.get("holds") for row in rows]
    if key == "named":
        return named
    if key == "right of those named":
        return [row["rank_right"] for row, is_named in zip(rows, named, strict=True) if is_named]
    return [answer for row in rows if (answer := row.get(key)) is not None]


def _share(answers: list[bool]) -> str:
    right, total = sum(answers), len(answers)
    return f"{right} of {total}, {100 * right / total:.1f} % ({interval(right, total)})" if total else "not measured"


if __name__ == "__main__":
    main()
