"""What an analyzer finds in a job that it looks at second by second, or once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from job.tests.support.observations import observed
from tensorwire_job.analyzer import Analyzer
from tensorwire_job.model import Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tensorwire_job.analyzer import Analysis
    from tensorwire_job.model import Finding, Observation, Rank

SECONDS = Thresholds(hang_seconds=5.0, slow_seconds=6.0, lost_seconds=2.0)


def watch(
    at: Callable[[float], Observation], until: float, *, step: float = 1.0, thresholds: Thresholds = SECONDS
) -> Iterator[tuple[float, Analysis]]:
    analyzer = Analyzer(thresholds)
    time = 0.0
    while time <= until:
        yield time, analyzer.update(at(time))
        time += step


def at_once(ranks: Iterable[Rank], time: float = 50.0, **more: Any) -> list[Finding]:
    """What an analyzer finds that sees the job for the first time."""
    return Analyzer(SECONDS).update(observed(time, ranks, **more)).findings


def last(at: Callable[[float], Observation], until: float = 12.0, **more: Any) -> list[Finding]:
    return [analysis for _, analysis in watch(at, until, **more)][-1].findings


def everything(at: Callable[[float], Observation], until: float, **more: Any) -> list[Finding]:
    """All findings of all times."""
    return [finding for _, analysis in watch(at, until, **more) for finding in analysis.findings]


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, [finding.summary for finding in findings]
    return findings[0]


def told(findings: list[Finding], *fields: str) -> tuple[Any, ...]:
    """Class and suspects of the only finding, and these fields of it."""
    return tuple(getattr(only(findings), field) for field in ("code", "suspects", *fields))
