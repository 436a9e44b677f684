"""Where watch, diagnose and report get a job from: the ranks on this machine, an analyzer's directory, a recording."""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from ...diagnosis.page.rank_page import is_ours, root_directory
from ...diagnosis.report.rank_status import seconds_text
from ...diagnosis.service.journal import STATE, read_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...diagnosis.model import Finding, Observation, Thresholds
    from ...diagnosis.report import History

_INTERVAL_SECONDS = 1.0
_ANSWER_SECONDS = 40.0  # enough for a dozen operations of three seconds to be timed
_STALE_SECONDS = 30.0


class Job(Protocol):
    """Where observations and findings come from."""

    def poll(self) -> tuple[Observation, list[Finding]]:
        """What there is to see now, and what is found in it and all before."""

    @property
    def awaits_stacks(self) -> bool:
        """The stack of a suspect is on its way."""


def follow(
    job: Job, history: History, thresholds: Thresholds, *, seconds: float | None, interval: float | None = None
) -> Iterator[tuple[list[Finding], list[Finding]]]:
    """Poll once an `interval` (a second), for `seconds` or until the job has ended.

    Yields what is found now, and what of it was not found before. Of a job that has just ended more can be found for
    a while: the first to die is known once the others are gone too.
    """
    interval = _INTERVAL_SECONDS if interval is None else interval
    begin = due = time.monotonic()
    while True:
        observation, findings = job.poll()
        if history.last is None or observation.time != history.last.time:  # an analyzer's directory may lag behind
            yield findings, history.add(observation, findings)
        due = max(due + interval, time.monotonic())
        if (seconds is not None and due > begin + seconds) or is_over(observation, thresholds):
            return
        time.sleep(max(0.0, due - time.monotonic()))


def follow_to_answer(
    job: Job, history: History, thresholds: Thresholds, *, seconds: float
) -> Iterator[tuple[list[Finding], list[Finding]]]:
    """What `follow` gives in `seconds`, and for a while after them if that is when an answer is due.

    That is: ranks time their operations because they seem slow and nothing is found yet, or a suspect's stack is on
    its way.
    """
    findings: list[Finding] = []
    for findings, started in follow(job, history, thresholds, seconds=seconds):
        yield findings, started
    if _is_answer_due(job, history, findings):
        for findings, started in follow(job, history, thresholds, seconds=_ANSWER_SECONDS):
            yield findings, started
            if not _is_answer_due(job, history, findings):
                return


def _is_answer_due(job: Job, history: History, findings: list[Finding]) -> bool:
    ranks = history.last.ranks.values() if history.last else ()
    return job.awaits_stacks or (not findings and any(rank.timed for rank in ranks))


def check_in_view(history: History, path: Path) -> None:
    """Raises FileNotFoundError where no rank was seen: that nothing was found means nothing then."""
    if history.last is None or not history.last.ranks:
        message = (
            "no rank is in view; pages here are damaged or of before the last boot, or no agent has reported to the "
            "analyzer yet"
        )
        raise FileNotFoundError(errno.ENOENT, message, str(path))


def is_over(observation: Observation, thresholds: Thresholds) -> bool:
    """Whether no process lives any more, and none has for as long as it takes to count as lost."""
    return bool(observation.ranks) and all(
        rank.process.life in ("exited", "lost") and (rank.process.gone_seconds or 0.0) > thresholds.lost_seconds
        for rank in observation.ranks.values()
    )


class _Analyzed:
    """What an analyzer's directory says."""

    awaits_stacks = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            age = time.time() - (directory / STATE).stat().st_mtime
        except FileNotFoundError as error:
            message = "no analyzer has written here; start one with tensorwire job analyzer --analyzer-dir"
            raise FileNotFoundError(errno.ENOENT, message, str(directory)) from error
        if age > _STALE_SECONDS:
            print(f"tensorwire: the analyzer wrote this {seconds_text(age)} ago and nothing since", file=sys.stderr)

    def poll(self) -> tuple[Observation, list[Finding]]:
        return read_state(self._directory)


@contextmanager
def open_job(
    directory: Path | None, analyzer_directory: Path | None, thresholds: Thresholds
) -> Iterator[tuple[Job, Path]]:
    """The job that an analyzer sees, or else the one whose probes write to a directory of this machine; and where.

    Raises:
        FileNotFoundError: there is no page of a rank, or nothing of an analyzer.
        click.UsageError: both directories are given.
    """
    if analyzer_directory is not None:
        if directory is not None:
            raise click.UsageError("expected --dir or --analyzer-dir, got both")
        yield _Analyzed(analyzer_directory), analyzer_directory
        return
    found = find_directory(directory)
    if found is None:
        message = (
            "no job with the probe; start one with torchrun ARGS -m tensorwire.probe train.py, or name the directory "
            "of one that runs, or ran, on this machine with --dir"
        )
        raise FileNotFoundError(errno.ENOENT, message, str(root_of(directory)))
    from ...diagnosis.service.service import LocalJob

    source = LocalJob(found, thresholds)
    try:
        yield source, found
    finally:
        source.close()


def root_of(directory: Path | None) -> Path:
    """Where to look for pages: the given directory, or the one that probes use."""
    given = os.environ.get("TENSORWIRE_PROBE_DIR")
    return directory or (Path(given) if given else root_directory())


def find_directory(directory: Path | None) -> Path | None:
    """The directory with the newest page; None if there is none, or somebody else may have made it."""
    root = root_of(directory)
    if root == root_directory() and not is_ours(root):
        return None
    pages = [*root.glob("rank-*.page"), *(() if directory else root.glob("*/rank-*.page"))]
    return max(pages, key=_changed).parent if pages else None


def _changed(page: Path) -> float:
    try:
        return page.lstat().st_ctime
    except FileNotFoundError:  # swept meanwhile
        return 0.0
