"""The tables made of runs of the matrix."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.environment import ROOT
from benchmarks.pages import table
from tensorwire_job.model import Confidence

from .cases import CASES
from .results import Results, Row, commits, interval, machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .cases import Case

JSON = ROOT / "job" / "benchmarks" / "results" / "diagnosis-faults.json"
RECORDINGS = ROOT / "job" / "tests" / "recordings"
_MORE = 3  # complaints shown of a case
_CLASSES = ("TW-LOST", "TW-H1", "TW-H2", "TW-H3", "TW-S1", "TW-S2", "TW-S3")
_GROUPS = (
    ("all hangs", ("hang",), "all"),
    ("all slow", ("slow",), "95 %"),
    ("all faults", ("lost", "hang", "slow"), ""),
    ("nothing wrong", ("none",), "all"),
)  # with the kinds of cases in each, and what is aimed at


def page(results: Results) -> str:
    rows = results.rows
    shown = [case for case in CASES if _of(rows, case)]
    wrong = list(_wrong(rows, shown))
    parts = [
        "# Faults in real jobs",
        "Jobs of 4 ranks on gloo, on one machine; the faulty rank is rotated over all positions. A run is right where "
        "the class *and* the ranks are as they should be, in everything that is found from the fault on; where nothing "
        "is wrong, it is right if nothing is found.",
        "\n".join([*machine(results.environment), f"- {len(rows)} runs, at these commits: {commits(rows)}"]),
        table(
            ("case", "what happens", "expected", "right", "95 % interval", "seconds to the verdict"),
            (
                [
                    case.name,
                    case.about,
                    " or ".join(case.codes) or "nothing",
                    *_share(_of(rows, case)),
                    _latency(rows, case),
                ]
                for case in shown
            ),
        ),
        table(
            ("class", "right", "95 % interval", "goal"),
            [
                *([code, *_share(_of(rows, *(case for case in CASES if code in case.codes))), ""] for code in _CLASSES),
                *(
                    [title, *_share(_of(rows, *(case for case in CASES if case.kind in kinds))), goal]
                    for title, kinds, goal in _GROUPS
                ),
            ],
        ),
        *(["## Wrong", "\n".join(wrong)] if wrong else []),
        "## Confidence",
        "A run counts for each confidence that its verdicts had. "
        "[Faults that the matrix did not have](diagnosis-unseen.md#confidence) have a table of their own.",
        table(
            ("confidence", "right"),
            ([level, "{} of {}".format(*counted) if counted[1] else "none"] for level, counted in count(rows).items()),
        ),
        *results.not_judged(),
    ]
    return "\n\n".join(parts) + "\n"


def count(rows: Iterable[Row]) -> dict[str, list[int]]:
    """By confidence: in how many runs all verdicts that had it were right, and how many runs had any."""
    told: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for row in rows:
        told.update(row["levels"].keys())
        right.update(level for level, (number, of) in row["levels"].items() if number == of)
    return {level.value: [right[level.value], told[level.value]] for level in Confidence}


def _of(rows: list[Row], *cases: Case) -> list[Row]:
    names = {case.name for case in cases}
    return [row for row in rows if row["case"] in names]


def _latency(rows: list[Row], case: Case) -> str:
    times = sorted(row["seconds"] for row in _of(rows, case) if row["seconds"] is not None)
    return f"{median(times):.1f} (at most {times[-1]:.1f})" if times else "-"


def _wrong(rows: list[Row], cases: list[Case]) -> Iterable[str]:
    for case in cases:
        wrong = [row for row in _of(rows, case) if not row["right"]]
        yield from (f"- {case.name}, fault at rank {row['rank']}: {row['wrong'][0]}" for row in wrong[:_MORE])
        if len(wrong) > _MORE:
            yield f"- {case.name}: {len(wrong) - _MORE} more"


def _share(rows: list[Row]) -> list[str]:
    right = sum(row["right"] for row in rows)
    return [f"{right}/{len(rows)}", interval(right, len(rows))]
