"""Polling a job: how long, and when its polls have ended."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ..node.agent import JITTER

if TYPE_CHECKING:
    from ..model import Finding, Observation, Process, Thresholds
    from ..report import History

_INTERVAL_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 40.0  # enough for a dozen operations of three seconds to be timed
_CERTAIN = ("TW-LOST", "TW-H1", "TW-H2")  # no counter of bytes or time makes them more certain


class PolledJob(Protocol):
    """Where observations and findings of a job come from."""

    def poll(self) -> tuple[Observation, list[Finding]]:
        """Observe the job now; the findings are in this observation and all before."""

    @property
    def awaits_stacks(self) -> bool:
        """Whether the stack of a suspect is on its way."""


class Poll(NamedTuple):
    findings: list[Finding]  # all that stand now
    new: list[Finding]  # of these, those that were not found before


def follow(
    source: PolledJob, history: History, thresholds: Thresholds, *, seconds: float | None, interval: float | None = None
) -> Iterator[Poll]:
    """Poll once an `interval` (a second), for `seconds` or until the job has ended; `history` gets the observations.

    Polls go on for a while after the end of the job: the rank that died first is known once the others are gone too.
    """
    interval = _INTERVAL_SECONDS if interval is None else interval
    begin = due = time.monotonic()
    while True:
        observation, findings = source.poll()
        if history.last is None or observation.time != history.last.time:  # an analyzer's directory may lag behind
            yield Poll(findings, history.add(observation, findings))
        due = max(due + interval * random.uniform(*JITTER), time.monotonic())
        if (seconds is not None and due > begin + seconds) or _has_ended(observation, thresholds):
            return
        time.sleep(max(0.0, due - time.monotonic()))


def follow_to_answer(source: PolledJob, history: History, thresholds: Thresholds, *, seconds: float) -> Iterator[Poll]:
    """Poll as `follow` does, and for up to 40 s longer if an answer is due.

    An answer is due if a suspect's stack is on its way, or if nothing is found yet and ranks time their operations,
    because they seem slow, or have ended so lately that they do not count as lost.
    """
    findings: list[Finding] = []
    for poll in follow(source, history, thresholds, seconds=seconds):
        findings = poll.findings
        yield poll
    if _is_answer_due(source, history, findings, thresholds):
        for poll in follow(source, history, thresholds, seconds=_ANSWER_SECONDS):
            yield poll
            if not _is_answer_due(source, history, poll.findings, thresholds):
                return


def ask(jobs: Sequence[tuple[PolledJob, History]], thresholds: Thresholds, *, seconds: float) -> list[list[Finding]]:
    """The findings on each job at the end of `follow_to_answer`, or as soon as two polls in a row had the same, all
    certain. The jobs are polled in turn, so that all take as long as one."""
    found: list[list[Finding]] = [[] for _ in jobs]
    polls = {
        number: follow_to_answer(source, history, thresholds, seconds=seconds)
        for number, (source, history) in enumerate(jobs)
    }
    while polls:
        for number in list(polls):
            poll = next(polls[number], None)
            if poll is not None:
                found[number] = poll.findings
            if poll is None or (_found_twice(poll) and not jobs[number][0].awaits_stacks):
                del polls[number]
    return found


def _found_twice(poll: Poll) -> bool:
    certain = all(finding.code in _CERTAIN for finding in poll.findings)
    return bool(poll.findings) and not poll.new and certain


def check_in_view(history: History, path: Path) -> None:
    """Raise FileNotFoundError where no rank was seen: "no finding" means nothing then."""
    if history.last is None or not history.last.ranks:
        message = (
            "no rank is in view: the pages here are damaged or older than the last boot, or no agent has reported "
            "to the analyzer yet"
        )
        raise FileNotFoundError(errno.ENOENT, message, str(path))


def _is_answer_due(source: PolledJob, history: History, findings: list[Finding], thresholds: Thresholds) -> bool:
    ranks = history.last.ranks.values() if history.last else ()
    due = any(rank.timed or _has_just_ended(rank.process, thresholds) for rank in ranks)
    return source.awaits_stacks or (not findings and due)


def _has_just_ended(process: Process, thresholds: Thresholds) -> bool:
    return not process.is_alive and (process.gone_seconds or 0.0) <= thresholds.lost_seconds


def _has_ended(observation: Observation, thresholds: Thresholds) -> bool:
    """Whether no process lives any more, and none has for as long as it takes to count as lost."""
    return bool(observation.ranks) and all(
        not rank.process.is_alive and (rank.process.gone_seconds or 0.0) > thresholds.lost_seconds
        for rank in observation.ranks.values()
    )
