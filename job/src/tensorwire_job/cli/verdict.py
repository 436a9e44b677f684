"""Findings and the status of ranks on the command line: in words, and as an object for a program."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorwire.cli import output
from tensorwire.cli.failures import FINDING

from .. import words

if TYPE_CHECKING:
    from ..model import Finding, Thresholds
    from ..report import History

_MAX_STATUS_GROUPS = 12


def exit_code(findings: Iterable[Finding]) -> int:
    """FINDING if there is a finding; a notice is none."""
    return FINDING if any(finding.level == "finding" for finding in findings) else 0


def as_object(history: History, findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings and the status of ranks, for JSON."""
    from ..report import rank_status

    last = history.last
    assert last is not None, "nothing was observed"
    return {
        "time": last.time,
        "run_id": last.run_id,
        "world_size": last.world_size,
        "lives": rank_status.lives(last),
        "silent_nodes": last.silent_nodes,
        "findings": findings,
        "rank_status": rank_status.status_groups(history.statuses)[:_MAX_STATUS_GROUPS],
        "slowest": rank_status.slowest(history.statuses),
        "stragglers": history.stragglers.ranking(),
        "rates": [{**family._asdict(), "per_second": rate} for family, rate in history.rates().items()],
    }


def thresholds_line(thresholds: Thresholds, whose: str = "") -> str:
    """The thresholds on one line: "thresholds: hang 30 s, slow 10 s, factor 3, lost 10 s"."""
    of = f" ({whose})" if whose else ""
    return (
        f"thresholds{of}: hang {thresholds.hang_seconds:g} s, slow {thresholds.slow_seconds:g} s, "
        f"factor {thresholds.slow_factor:g}, lost {thresholds.lost_seconds:g} s"
    )


def print_news(finding: Finding, *, as_json: bool) -> None:
    """Print a new finding at once: on one line with the time, or as JSON."""
    from ..report.codes import finding_line

    if as_json:
        output.print_json(finding)
    else:
        output.print_line(f"{time.strftime('%H:%M:%S')} {finding_line(finding)}")
    sys.stdout.flush()


def print_end(history: History) -> None:
    """Print when the job ended, if it runs no more: a job that began a moment ago may be the one that was meant."""
    if history.is_over:
        which = "the job of this recording" if history.recorded else "the job"
        late = "" if history.recorded else "; one that started seconds ago cannot be seen yet"
        output.print_line(f"{which} ended {history.ago(history.ended_seconds)}{late}")


def report_options(path: Path) -> list[str]:
    """The options by which `report` finds the job that was found at this path: of its pages, or of its analyzer."""
    from ..service.journal import RECORDING

    recording = path / RECORDING
    return ["--recording", str(recording)] if recording.is_file() else ["--dir", str(path)]


def print_findings(findings: Sequence[Finding], history: History | None = None, path: Path | None = None) -> None:
    """Print each finding for a person who has read nothing: what is wrong, since when, how sure that is, why, where the
    suspects stand, what to do, and the command to type next. Jobs without the probe have neither history nor path."""
    from ..report.codes import MEANINGS, advice, circle_text, confidence_text
    from ..report.next_command import next_command
    from ..stacks import grouped

    for finding in findings:
        facts = [history.age(finding)] if history else []
        facts.append(confidence_text(finding, has_probe=history is not None))
        mark = "" if finding.level == "finding" else ", notice: the exit code stays 0"
        output.print_wrapped(finding.summary)
        output.print_wrapped(f"  {'; '.join(facts)} ({finding.code}, {MEANINGS[finding.code].title}{mark})")
        for side in finding.sides:
            output.print_wrapped(f"  one side: {words.ranks(side)}")
        for fact in finding.evidence:
            output.print_wrapped(f"  evidence: {fact}")
        if finding.circle:
            output.print_wrapped(f"  circle: {circle_text(finding.circle)}")
        for numbers, stack in grouped(finding.stacks):
            output.print_line(f"  stack of {words.ranks(numbers)}:")
            for line in stack.splitlines():
                output.print_line(f"    {line}")
        output.print_wrapped(f"  what to do: {advice(finding)}")
        command = next_command(finding, history, report_options(path)) if history and path else ""
        if command:
            output.print_line(f"  next: {command}")
        print()


def print_rank_status(history: History, findings: Sequence[Finding]) -> None:
    """Print where the ranks stand, the most serious status first."""
    from ..report import rank_status

    groups = rank_status.status_groups(history.statuses, apart={rank for one in findings for rank in one.suspects})
    rows = [
        (group.text, f"{group.num_ranks:,}", words.seconds(group.seconds) if group.seconds else "", group.few_ranks())
        for group in groups[:_MAX_STATUS_GROUPS]
    ]
    output.print_table(("rank status", ">ranks", ">for", "which"), rows)
    if len(groups) > _MAX_STATUS_GROUPS:
        output.print_line(f"and {output.count(len(groups) - _MAX_STATUS_GROUPS, 'more group')}, less serious")


def print_summary(
    history: History, findings: Sequence[Finding], thresholds: Thresholds, path: Path, whose: str
) -> None:
    """Print which job was polled and, where there is no finding, how near it came to one."""
    from ..report import rank_status

    last = history.last
    assert last is not None, "nothing was observed"
    counts = ", ".join(f"{number:,} {life}" for life, number in rank_status.lives(last).items() if number)
    output.print_line(f"{path}: {output.count(last.world_size, 'rank')}, {counts}")
    if last.silent_nodes:
        silent = words.names(last.silent_nodes)
        output.print_wrapped(f"note: no reports from {silent}: what is said of their ranks is old")
    output.print_wrapped(thresholds_line(thresholds, whose))
    if not exit_code(findings):
        output.print_wrapped(no_finding_text(history, thresholds))


def no_finding_text(history: History, thresholds: Thresholds | None) -> str:
    """ "no finding", and how near the job came to one."""
    if thresholds is None:
        return "no finding"
    places = history.ranks.places
    gone = [0.0 if age != age else age for age in places.gone_seconds[~places.are_alive].tolist()]
    if gone and min(gone) < thresholds.lost_seconds and not history.recorded:
        return (
            f"no finding yet: {output.count(len(gone), 'rank')} ended up to {words.seconds(max(gone))} ago, and one "
            f"that ended counts as lost after {thresholds.lost_seconds:g} s (--lost-seconds)"
        )
    longest = history.statuses.longest_wait
    if longest:
        return (
            f"no finding: the longest wait is {words.seconds(longest)}, a hang is one of more than "
            f"{thresholds.hang_seconds:g} s (--hang-seconds)"
        )
    return "no finding"
