"""The tables made of runs without the probe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.environment import ROOT
from benchmarks.pages import table

from .cases import BY_NAME
from .results import commits, interval, machine
from .training_job import WORLD_SIZE

if TYPE_CHECKING:
    from .results import Results, Row

JSON = ROOT / "job" / "benchmarks" / "results" / "diagnosis-stacks.json"
_SHARES = (
    ("named, and right", "rank_right", "60 %"),
    ("others named, and not the right rank", "misnamed", "0"),
    ("sides or several ranks, the right one among them", "holds", ""),
    ("found", "found", ""),
)


def page(results: Results) -> str:
    rows = results.rows
    parts = [
        "# Hangs without the probe, by py-spy alone",
        f"Jobs of {WORLD_SIZE} ranks on gloo, on one machine, without the probe: all variants of the other page that "
        "hang and are looked at alive, but those that gloo aborts. Each runs once, at one rank by turns. py-spy takes "
        "the stack of each rank, and `diagnose --stacks` reads them, with the sources at hand. R is the rank that the "
        "fault befell. A run is right if the ranks that are right are named, and no others before them.",
        "\n".join([*machine(results.environment), f"- Commits: {commits(rows)}"]),
        table(("", "runs", "of", "95 %", "target"), (_share(rows, *each) for each in _SHARES)),
        "## Runs",
        table(("case", "R", "expected", "said", ""), map(_run, rows)),
        *results.not_judged(),
    ]
    return "\n\n".join(parts) + "\n"


def _share(rows: list[Row], title: str, key: str, target: str) -> tuple[str, ...]:
    number = sum(bool(row[key]) for row in rows)
    return title, str(number), str(len(rows)), interval(number, len(rows)), target


def _run(row: Row) -> tuple[str, ...]:
    kinds = (("rank_right", "right"), ("misnamed", "wrong"), ("holds", "open"), ("found", "nobody named"))
    told = next((word for key, word in kinds if row[key]), "not found")
    return row["case"], str(row["rank"]), BY_NAME[row["case"]].expected, row["said"], told
