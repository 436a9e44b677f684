"""Signals that ask for the end. One that is caught is no end: the job goes on after it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ...model import Rank
    from .job import Job

TOGETHER = 10.0  # in which a signal reaches all ranks, if one after the other; what comes later is another one
SAME_SECONDS = 1.0  # times that are known to a poll
_GRACE = 40.0  # torchrun, Slurm and Kubernetes kill what is left 30 s after they have asked it to end
_MOMENT = 0.02  # to which two times of one page are known


def may_end(job: Job) -> bool:
    """Whether a signal has come that may be about to end a job of which all ranks live."""
    young = {number: age for number, age in job.columns.signals.items() if age <= _GRACE}
    return bool(young) and not goes_on(job, young)


def goes_on(job: Job, asked: dict[int, float], end: float = 0.0) -> bool:
    """Whether a rank has entered an operation after the signal that it got so long ago, or any has completed one a poll
    after the first signal, before the first end: who waits does not react."""
    columns, rows = job.columns, job.columns.rows
    if not asked:
        return False
    own = np.zeros(len(columns))
    own[[columns.place_of[number] for number in asked]] = list(asked.values())
    entered = (rows.open_seconds >= end) & (rows.open_seconds < own[rows.places] - _MOMENT)
    completed = (rows.idle_seconds >= end) & (rows.idle_seconds < max(asked.values()) - SAME_SECONDS)
    return bool((entered | completed).any())


def without_outlived(job: Job, dead: dict[int, Rank], end: float) -> Job:
    """The job with those signals alone of which ranks may have ended, or may yet end. `end` is the age of the first
    end; a rank that a second signal ended had outlived its first one."""
    signals = job.columns.signals
    outlived = {number for number, age in signals.items() if number in dead and _is_outlived(dead[number], age, end)}
    latest = end + (TOGETHER if outlived else _GRACE)
    return without(job, outlived | {number for number, age in signals.items() if age > latest})


def without(job: Job, numbers: Collection[int]) -> Job:
    """The job, as if these ranks had got no signal."""
    return replace(job, ranks=job.columns.without_signals(numbers)) if numbers else job


def _is_outlived(rank: Rank, age: float, end: float) -> bool:
    ended = rank.process.exit_seconds
    if rank.process.exit_kind != "interruption" or ended is None:
        return False
    idle = (group.idle_seconds for group in rank.process_groups)
    return age - ended > TOGETHER > end - ended or any(
        ago is not None and end <= ago < age - SAME_SECONDS for ago in idle
    )
