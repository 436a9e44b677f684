"""The job as it was when somebody ended it: what its ranks had waited in is in their pages still."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .work import Work

if TYPE_CHECKING:
    from ..model import ProcessGroup, Rank
    from .groups import Group
    from .job import Job

# A person ends a job that hangs after a while; ranks of a job that is well wait for each other for less.
_PATIENCE = 10.0
_LEAST_PATIENCE = 5.0  # where it is known what is usual
_USUAL = 20.0  # times the usual time between operations


def rewound(job: Job, seconds: float) -> Job:
    """So many seconds ago. All ranks that are seen live in it, and a wait that was long then is a hang.

    torch counts an operation that fails with the job as completed: it was open then, for as long as those who had not
    entered it had been in no operation of the group.
    """
    ranks = {number: _alive(rank, seconds) for number, rank in job.ranks.items()}
    back = {group.id: _Group(group, seconds) for group in job.groups.values()}
    for rank in ranks.values():
        rank.process_groups = [back[group.id].member(group) for group in rank.process_groups]
    thresholds = replace(job.thresholds, hang_seconds=min(job.thresholds.hang_seconds, _patience(job)))
    phases = job.phases | {number: rank.phase for number, rank in ranks.items() if rank.phase}
    return replace(job, ranks=ranks, phases=phases, thresholds=thresholds, work=Work())


def _alive(rank: Rank, seconds: float) -> Rank:
    process = rank.process
    if not process.is_alive:
        process = replace(process, life="running", state="", gone_seconds=None)
    return replace(rank, process=process, heartbeat_seconds=max(rank.heartbeat_seconds - seconds, 0.0))


class _Group:
    """What members of one group showed then."""

    def __init__(self, group: Group, seconds: float) -> None:
        self._seconds = seconds
        self._outside = [
            (member.enqueued, member.idle_seconds - seconds)
            for member in group.members.values()
            if member.open_seconds is None and member.idle_seconds is not None and member.idle_seconds > seconds
        ]

    def member(self, own: ProcessGroup) -> ProcessGroup:
        if own.open_seconds is not None:
            waited = own.open_seconds - self._seconds
            return replace(own, open_seconds=max(waited, 0.0), idle_seconds=_before(own.idle_seconds, self._seconds))
        if own.idle_seconds is None or own.idle_seconds > self._seconds or own.is_pairwise or own.completed < 1:
            return replace(own, idle_seconds=_before(own.idle_seconds, self._seconds))
        ages = [age for enqueued, age in self._outside if enqueued < own.completed]
        waited = min(ages, default=0.0)
        return replace(own, completed=own.completed - 1, open_seconds=waited, idle_seconds=waited)


def _before(age: float | None, seconds: float) -> float | None:
    return None if age is None else max(age - seconds, 0.0)


def _patience(job: Job) -> float:
    """How long a wait has to be to be none of a job that is well."""
    rates = [group.baseline_rate for rank in job.ranks.values() for group in rank.process_groups if group.baseline_rate]
    return min(_PATIENCE, max(_LEAST_PATIENCE, _USUAL / min(rates))) if rates else _PATIENCE
