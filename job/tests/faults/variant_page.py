"""The tables made of runs of variants."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.environment import ROOT
from benchmarks.pages import table
from tensorwire_job.model import Confidence

from .cases import GROUPS
from .results import FIRST, MENDED, STAGES, Results, Row, commits, interval, machine
from .training_job import WORLD_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .cases import Case

JSON = ROOT / "job" / "benchmarks" / "results" / "diagnosis-unseen.json"
_MORE = 2  # wrong runs shown of a variant
_WIDTH = 600  # of what is said of one
_SAID = re.compile(r"(?P<code>TW-\w+) (?P<suspects>no rank|.*?)(?: of .*?)? \((?P<confidence>\w+)\)")
_UNSEEN = {  # groups, and what they are called
    "unseen": "unseen",
    "second": "second set",
    "third": "third set",
    "fifth": "fifth set",
}
_COLUMNS = (
    ("known before", "known", MENDED),
    ("after the fourth set", "fourth", MENDED),
    *((f"{title}, {stage}", group, stage) for group, title in _UNSEEN.items() for stage in STAGES),
)
_SHARES: tuple[tuple[str, str, str], ...] = (
    ("found", "found", "all"),
    ("rank right", "rank_right", "95 %"),
    ("class right", "class_right", "85 %"),
    ("an honest tie in place of the rank", "tie", ""),
    ("sides or several ranks, the right one among them", "holds", ""),
    ("others named, and not the right rank", "misnamed", "3 %"),
    ("the same once the job is dead", "same", "all"),
)
_SETS = ("unseen", "second", "third")
_FAULTS = ("known", "fourth", *_SETS, "fifth")
_TOGETHER: tuple[tuple[str, Sequence[str], str, str, str], ...] = (
    ("known before: rank right", ("known",), MENDED, "rank_right", "97 %"),
    ("sets 1 to 3, first: rank right", _SETS, FIRST, "rank_right", ""),
    ("sets 1 to 3, mended: rank right", _SETS, MENDED, "rank_right", "90 %"),
    ("sets 1 to 3, mended: sides or several ranks, the right one among them", _SETS, MENDED, "holds", ""),
    ("sets 1 to 3, mended: others named, and not the right rank", _SETS, MENDED, "misnamed", "at most 3 %"),
    ("fifth set, first: found", ("fifth",), FIRST, "found", "all"),
    ("fifth set, first: one verdict, and no tie", ("fifth",), FIRST, "named", "75 %"),
    ("fifth set, first: of those, rank right", ("fifth",), FIRST, "right of those named", "95 %"),
    ("fifth set, first: class right", ("fifth",), FIRST, "class_right", "92 %"),
    ("all, mended: the same once the job is dead", _FAULTS, MENDED, "same", "all"),
)


def page(results: Results) -> str:
    rows = results.rows
    healthy = _of(rows, "healthy")
    parts = [
        "# Faults that the first matrix did not have",
        f"Jobs of {WORLD_SIZE} ranks on gloo, on one machine. Each variant is a training program of its own, and the "
        "fault befalls each rank in turn. R is the rank that it befell. The rank and the class of a run are right if "
        "those of the first finding are right in every look that has one; looks at TW-UNKNOWN do not count where "
        "another class is found as well. The rank is right if the first suspects are those that are right: suspects "
        "that stand behind them count against a finding of high confidence alone.",
        "After the last look at a job that lives, all its ranks get SIGTERM, and the dead job is judged as well. What "
        "is said of it is the same if the first finding has the class and the ranks of that last look, or its sides "
        "where no rank is named.",
        '*Known before*: what an earlier analyzer was given once; "said before" is of commit f50f332, by other '
        "programs. *Unseen*: thought of from the docs alone; the first results were made before anyone tuned the "
        "analyzer to them. *Second set*: likewise, after the analyzer had been mended for the first. *Third set*: "
        "after reports in public issue trackers, each named in its program; first run after the second was mended. "
        "*Fifth set*: likewise, written without a look at the analyzer, each fault at two ranks. A fourth set is not "
        "in the project; *after the fourth set* has programs for the causes of its wrong findings, and the analyzer "
        "was mended with these.",
        "\n".join(
            [
                *machine(results.environment, "; those of `diagnose` for a job that a signal ended"),
                *(f"- Commits, {title}: {commits(of_stage(rows, *column)) or 'none'}" for title, *column in _COLUMNS),
                f"- Commits, healthy: {commits(healthy) or 'none'}",
            ]
        ),
        _summary(rows),
        f"Looks at healthy jobs that had a finding: {false_looks(healthy)}.",
        *_confidence(rows, healthy),
        *_kinds(rows),
        *_known("known", "Known before", rows),
        *_known("fourth", "After the fourth set", rows),
        *(part for group in _UNSEEN for part in _unseen(group, rows)),
        *_healthy(healthy),
        *_list("Another verdict once dead", _unlike_when_dead(rows)),
        *_list("Wrong", _wrong(rows)),
        "## Together",
        together(rows),
        *results.not_judged(),
    ]
    return "\n\n".join(parts) + "\n"


def _of(rows: list[Row], group: str) -> list[Row]:
    names = {case.name for case in GROUPS[group]}
    return [row for row in rows if row["case"] in names]


def of_stage(rows: list[Row], group: str, stage: str) -> list[Row]:
    return [row for row in _of(rows, group) if row["stage"] == stage]


def with_faults(rows: list[Row], *, are: bool = True) -> list[Row]:
    """The rows in which something is to be found, or the rows in which nothing is."""
    names = {case.name for cases in GROUPS.values() for case in cases if bool(case.codes) == are}
    return [row for row in rows if row["case"] in names]


def _summary(rows: list[Row]) -> str:
    columns = [of_stage(rows, *column) for _, *column in _COLUMNS]

    def line(title: str, cell: Callable[[list[Row]], str], goal: str, *, faults: bool = True) -> list[str]:
        return [title, *(cell(with_faults(column, are=faults)) for column in columns), goal]

    def innocent(column: list[Row]) -> str:
        return str(sum(len(row["innocent"]) for row in column)) if column else "-"

    return table(
        ("of the runs with a fault", *(title for title, _, _ in _COLUMNS), "goal"),
        [
            *(line(title, partial(_share, key), goal) for title, key, goal in _SHARES),
            ["high-confidence findings that name somebody else", *map(innocent, columns), "0"],
            line("looks with a finding at jobs with nothing wrong", false_looks, "0", faults=False),
        ],
    )


def false_looks(rows: list[Row]) -> str:
    looks, false = (sum(row[key] for row in rows) for key in ("looks", "false_looks"))
    return f"{false:,} of {looks:,}" if rows else "-"


def _confidence(rows: list[Row], healthy: list[Row]) -> list[str]:
    columns = [*(of_stage(rows, *column) for _, *column in _COLUMNS), healthy]

    def cell(column: list[Row], level: Confidence) -> str:
        right, told = (sum(row["levels"].get(level.value, [0, 0])[part] for row in column) for part in (0, 1))
        return f"{right} of {told}" if told else "none"

    return [
        "## Confidence",
        "Different verdicts in a run count once each: how many of each were right.",
        table(
            ("confidence", *(title for title, _, _ in _COLUMNS), "healthy"),
            ([level.value, *(cell(column, level) for column in columns)] for level in Confidence),
        ),
    ]


def by_kind(rows: list[Row]) -> dict[str, dict[Confidence, tuple[int, int]]]:
    """The unseen faults at first sight whose first finding named suspects, by its code and confidence: in how many of
    them the suspects were right, and how many there were."""
    counted: dict[tuple[str, Confidence], list[bool]] = defaultdict(list)
    for row in with_faults([row for group in _UNSEEN for row in of_stage(rows, group, FIRST)]):
        said = _SAID.match(row["said"])
        if said and said["suspects"] != "no rank":
            counted[said["code"], Confidence(said["confidence"])].append(row["rank_right"])
    found: dict[str, dict[Confidence, tuple[int, int]]] = defaultdict(dict)
    for (code, confidence), right in sorted(counted.items()):
        found[code][confidence] = sum(right), len(right)
    return dict(found)


def _kinds(rows: list[Row]) -> list[str]:
    known = by_kind(rows)
    return [
        "At first sight, by the first finding: in how many of the unseen faults its suspects were right, of those in "
        "which it named suspects.",
        table(
            ("code", *(level.value for level in Confidence)),
            (
                [code, *("{} of {}".format(*levels[each]) if each in levels else "none" for each in Confidence)]
                for code, levels in known.items()
            ),
        ),
    ]


def _known(group: str, title: str, rows: list[Row]) -> list[str]:
    heads = ("fault", "what goes wrong", "expected", "said before", "said now", "right now")
    cells = (
        [case.name, case.about, case.expected, case.before or "-", *_told(runs)] for case, runs in _by_case(group, rows)
    )
    return [f"## {title}", table(heads, cells)]


def _unseen(group: str, rows: list[Row]) -> list[str]:
    heads = ("fault", "what goes wrong", "expected", "said first", "right first", "said after mending", "right after")
    cells = []
    for case, runs in _by_case(group, rows):
        told = (_told([row for row in runs if row["stage"] == stage]) for stage in STAGES)
        cells.append([case.name, case.about, case.expected, *(cell for pair in told for cell in pair)])
    return [f"## {_UNSEEN[group].capitalize()}", table(heads, cells)]


def _healthy(rows: list[Row]) -> list[str]:
    heads = ("job", "what it does", "runs", "looks", "looks with a finding")
    cells = []
    for case, runs in _by_case("healthy", rows):
        looks, false = (sum(row[key] for row in runs) for key in ("looks", "false_looks"))
        cells.append([case.name, case.about, str(len(runs)), str(looks), str(false)])
    return ["## Healthy", table(heads, cells)]


def _by_case(group: str, rows: list[Row]) -> list[tuple[Case, list[Row]]]:
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_name[row["case"]].append(row)
    return [(case, by_name[case.name]) for case in GROUPS[group] if by_name[case.name]]


def _told(rows: list[Row]) -> tuple[str, str]:
    """What was said; and how often that was right, and after how many seconds."""
    if not rows:
        return "not run", "-"
    said = Counter(row["said"] for row in rows)
    text = "; ".join(f"{what}: {number}" if len(said) > 1 else what for what, number in said.most_common())
    right, rank, of_class = (sum(row[key] for row in rows) for key in ("right", "rank_right", "class_right"))
    parts = f" (rank {rank}, class {of_class})" if right < len(rows) else ""
    times = [row["seconds"] for row in rows if row["seconds"] is not None]
    after = f"; after {median(times):.1f} s" if times else ""
    return text, f"{right} of {len(rows)}{parts}{after}"


def _list(title: str, lines: Iterable[str]) -> list[str]:
    text = "\n".join(lines)
    return [f"## {title}", text] if text else []


def _unlike_when_dead(rows: list[Row]) -> Iterator[str]:
    """The runs in which the dead job had another verdict."""
    for group in GROUPS:
        for case, runs in _by_case(group, rows):
            for row in runs:
                if row.get("same") is False:
                    yield f"- {case.name}, fault at rank {row['rank']}: {row['said']}; dead: {row['dead']}"


def _wrong(rows: list[Row]) -> Iterator[str]:
    for title, group, stage in (*_COLUMNS, ("healthy", "healthy", MENDED)):
        for case, runs in _by_case(group, of_stage(rows, group, stage)):
            wrong = [row for row in runs if not row["right"]]
            yield from (f"- {title}: {case.name}, fault at rank {row['rank']}: {_why(row)}" for row in wrong[:_MORE])
            if len(wrong) > _MORE:
                yield f"- {title}: {case.name}: {len(wrong) - _MORE} more"


def _why(row: Row) -> str:
    text = " / ".join(row["wrong"])
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _share(key: str, rows: list[Row]) -> str:
    """The share of the rows that have an answer; earlier rows lack some."""
    rows = [row for row in rows if row.get(key) is not None]
    if not rows:
        return "-"
    right = sum(row[key] for row in rows)
    return f"{right}/{len(rows)} ({interval(right, len(rows))})"


def together(rows: list[Row]) -> str:
    """What the runs of one file or several come to, beside what is aimed at."""
    cells = [
        [title, _whole_share(_answers(with_faults(_of_sets(rows, groups, stage)), key)), goal]
        for title, groups, stage, key, goal in _TOGETHER
    ]
    healthy = _of_sets(rows, ("healthy",), MENDED)
    looks, false = (sum(row[key] for row in healthy) for key in ("looks", "false_looks"))
    cells.append(["healthy jobs: looks without a finding", f"{looks - false:,} of {looks:,}", "all of 5,000"])
    return table(("runs with a fault", "share, and 95 % interval", "goal"), cells)


def _of_sets(rows: list[Row], groups: Iterable[str], stage: str) -> list[Row]:
    return [row for group in groups for row in of_stage(rows, group, stage)]


def _answers(rows: list[Row], key: str) -> list[bool]:
    """The answers of the runs that have one: earlier runs were not asked for all."""
    named = [row["found"] and not row["tie"] and not row.get("holds") for row in rows]
    if key == "named":
        return named
    if key == "right of those named":
        return [row["rank_right"] for row, is_named in zip(rows, named, strict=True) if is_named]
    return [answer for row in rows if (answer := row.get(key)) is not None]


def _whole_share(answers: list[bool]) -> str:
    right, total = sum(answers), len(answers)
    return f"{right} of {total}, {100 * right / total:.1f} % ({interval(right, total)})" if total else "not measured"
