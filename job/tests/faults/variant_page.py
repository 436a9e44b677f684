"""The tables made of runs of variants."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

from tensorwire_job.model import Confidence

from .runs import Row, commits, interval
from .training_job import WORLD_SIZE
from .variants import GROUPS

if TYPE_CHECKING:
    from .variants import Variant

_MORE = 2  # wrong runs shown of a variant
_WIDTH = 600  # of what is said of one
_UNSEEN = {  # groups, and what they are called
    "unseen": "unseen",
    "second": "second set",
    "third": "third set",
    "fifth": "fifth set",
}
_COLUMNS = (
    ("known before", "known", "mended"),
    ("after the fourth set", "fourth", "mended"),
    *((f"{title}, {stage}", group, stage) for group, title in _UNSEEN.items() for stage in ("first", "mended")),
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


def page(rows: list[Row], facts: dict[str, Any]) -> str:
    healthy = _of(rows, "healthy")
    lines = [
        "# Faults that the first matrix did not have",
        "",
        f"Jobs of {WORLD_SIZE} ranks on gloo, on one machine. Each variant is a training program of its own, and the "
        "fault befalls each rank in turn. R is the rank that it befell. The rank and the class of a run are right if "
        "those of the first finding are right in every look that has one; looks at TW-UNKNOWN do not count where "
        "another class is found as well. The rank is right if the first suspects are those that are right: suspects "
        "that stand behind them count against a finding of high confidence alone.",
        "",
        "After the last look at a job that lives, all its ranks get SIGTERM, and the dead job is judged as well. What "
        "is said of it is the same if the first finding has the class and the ranks of that last look, or its sides "
        "where no rank is named.",
        "",
        '*Known before*: what an earlier analyzer was given once; "said before" is of commit f50f332, by other '
        "programs. *Unseen*: thought of from the docs alone; the first results were made before anyone tuned the "
        "analyzer to them. *Second set*: likewise, after the analyzer had been mended for the first. *Third set*: "
        "after reports in public issue trackers, each named in its program; first run after the second was mended. "
        "*Fifth set*: likewise, written without a look at the analyzer, each fault at two ranks. A fourth set is not "
        "in the project; *after the fourth set* has programs for the causes of its wrong findings, and the analyzer "
        "was mended with these.",
        "",
        f"- Machine: {facts['cpu']}, {facts['cores']} cores, {facts['memory']}; {facts['system']}",
        f"- Python {facts['python']}, torch {facts['versions']['torch']}; load average at the start "
        f"{facts['load']:.2f}",
        f"- Thresholds: {facts['thresholds']}; those of `diagnose` for a job that a signal ended",
        f"- Last added to {facts['date']}, by `{facts['command']}`",
        *(f"- Commits, {title}: {commits(of_stage(rows, group, stage)) or 'none'}" for title, group, stage in _COLUMNS),
        f"- Commits, healthy: {commits(healthy) or 'none'}",
        "",
        *_summary(rows, healthy),
        *_confidence(rows, healthy),
        *_known("known", "Known before", rows),
        *_known("fourth", "After the fourth set", rows),
        *(line for group in _UNSEEN for line in _unseen(group, _of(rows, group))),
        *_healthy(healthy),
        *_unlike_when_dead(rows),
        *_wrong(rows),
    ]
    return "\n".join(lines) + "\n"


def _of(rows: list[Row], group: str) -> list[Row]:
    names = {variant.name for variant in GROUPS[group]}
    return [row for row in rows if row["case"] in names]


def of_stage(rows: list[Row], group: str, stage: str) -> list[Row]:
    return [row for row in _of(rows, group) if row["stage"] == stage]


def with_faults(rows: list[Row], *, are: bool = True) -> list[Row]:
    """The rows in which something is to be found, or the rows in which nothing is."""
    names = {variant.name for variants in GROUPS.values() for variant in variants if bool(variant.codes) == are}
    return [row for row in rows if row["case"] in names]


def _summary(rows: list[Row], healthy: list[Row]) -> list[str]:
    columns = [of_stage(rows, group, stage) for _, group, stage in _COLUMNS]
    titles = " | ".join(title for title, _, _ in _COLUMNS)
    lines = [f"| of the runs with a fault | {titles} | goal |", "|---" * (len(_COLUMNS) + 2) + "|"]
    for title, key, goal in _SHARES:
        cells = " | ".join(_share(with_faults(column), key) for column in columns)
        lines.append(f"| {title} | {cells} | {goal} |")
    cells = " | ".join(str(sum(len(row["innocent"]) for row in column)) if column else "-" for column in columns)
    lines.append(f"| high-confidence findings that name somebody else | {cells} | 0 |")
    cells = " | ".join(_false_looks(with_faults(column, are=False)) for column in columns)
    lines.append(f"| looks with a finding at jobs with nothing wrong | {cells} | 0 |")
    return [*lines, "", f"Looks at healthy jobs that had a finding: {_false_looks(healthy)}."]


def _false_looks(rows: list[Row]) -> str:
    looks, false = (sum(row[key] for row in rows) for key in ("looks", "false_looks"))
    return f"{false:,} of {looks:,}" if rows else "-"


def _confidence(rows: list[Row], healthy: list[Row]) -> list[str]:
    columns = [*(of_stage(rows, group, stage) for _, group, stage in _COLUMNS), healthy]
    titles = " | ".join(title for title, _, _ in _COLUMNS)
    lines = ["", "## Confidence", "", "Different verdicts in a run count once each: how many of each were right.", ""]
    lines += [f"| confidence | {titles} | healthy |", "|---" * (len(_COLUMNS) + 2) + "|"]
    for level in Confidence:
        cells = []
        for column in columns:
            right, told = (sum(row["levels"].get(level.value, [0, 0])[part] for row in column) for part in (0, 1))
            cells.append(f"{right} of {told}" if told else "none")
        lines.append(f"| {level.value} | {' | '.join(cells)} |")
    return lines


def _known(group: str, title: str, rows: list[Row]) -> list[str]:
    lines = ["", f"## {title}", "", "| fault | what goes wrong | expected | said before | said now | right now |"]
    lines.append("|---|---|---|---|---|---|")
    for variant, runs in _by_variant(GROUPS[group], _of(rows, group)):
        lines.append(
            f"| {variant.name} | {variant.about} | {variant.expected} | {variant.before or '-'} | {_told(runs)} |"
        )
    return lines


def _unseen(group: str, rows: list[Row]) -> list[str]:
    lines = [
        "",
        f"## {_UNSEEN[group].capitalize()}",
        "",
        "| fault | what goes wrong | expected | said first | right first | said after mending ",
    ]
    lines[-1] += "| right after |"
    lines.append("|---|---|---|---|---|---|---|")
    for variant, runs in _by_variant(GROUPS[group], rows):
        first, mended = ([row for row in runs if row["stage"] == stage] for stage in ("first", "mended"))
        lines.append(f"| {variant.name} | {variant.about} | {variant.expected} | {_told(first)} | {_told(mended)} |")
    return lines


def _healthy(rows: list[Row]) -> list[str]:
    lines = [
        "",
        "## Healthy",
        "",
        "| job | what it does | runs | looks | looks with a finding |",
        "|---|---|---|---|---|",
    ]
    for variant, runs in _by_variant(GROUPS["healthy"], rows):
        looks, false = (sum(row[key] for row in runs) for key in ("looks", "false_looks"))
        lines.append(f"| {variant.name} | {variant.about} | {len(runs)} | {looks} | {false} |")
    return lines


def _by_variant(variants: list[Variant], rows: list[Row]) -> list[tuple[Variant, list[Row]]]:
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_name[row["case"]].append(row)
    return [(variant, by_name[variant.name]) for variant in variants if by_name[variant.name]]


def _told(rows: list[Row]) -> str:
    """Two cells: what was said, and how often that was right, and after how many seconds."""
    if not rows:
        return "not run | -"
    said = Counter(row["said"] for row in rows)
    text = "; ".join(f"{what}: {number}" if len(said) > 1 else what for what, number in said.most_common())
    right = sum(row["right"] for row in rows)
    parts = ", ".join(
        f"{name} {sum(row[key] for row in rows)}" for name, key in (("rank", "rank_right"), ("class", "class_right"))
    )
    times = [row["seconds"] for row in rows if row["seconds"] is not None]
    after = f"; after {median(times):.1f} s" if times else ""
    return f"{text} | {right} of {len(rows)}" + (f" ({parts})" if right < len(rows) else "") + after


def _unlike_when_dead(rows: list[Row]) -> list[str]:
    """The runs in which the dead job had another verdict."""
    lines = []
    for group, variants in GROUPS.items():
        for variant, runs in _by_variant(variants, _of(rows, group)):
            unlike = [row for row in runs if row.get("same") is False]
            lines += [f"- {variant.name}, fault at rank {row['rank']}: {row['said']}; dead: {row['dead']}"
                      for row in unlike]  # fmt: skip
    return ["", "## Another verdict once dead", "", *lines] if lines else []


def _wrong(rows: list[Row]) -> list[str]:
    lines = []
    for title, group, stage in (*_COLUMNS, ("healthy", "healthy", "mended")):
        for variant, runs in _by_variant(GROUPS[group], of_stage(rows, group, stage)):
            wrong = [row for row in runs if not row["right"]]
            lines += [f"- {title}: {variant.name}, fault at rank {row['rank']}: {_why(row)}" for row in wrong[:_MORE]]
            if len(wrong) > _MORE:
                lines.append(f"- {title}: {variant.name}: {len(wrong) - _MORE} more")
    return ["", "## Wrong", "", *lines] if lines else []


def _why(row: Row) -> str:
    text = " / ".join(row["wrong"])
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _share(rows: list[Row], key: str) -> str:
    """The share of the rows that have an answer; earlier rows lack some."""
    rows = [row for row in rows if row.get(key) is not None]
    if not rows:
        return "-"
    right = sum(row[key] for row in rows)
    return f"{right}/{len(rows)} ({interval(right, len(rows))})"
