"""The job as it was when somebody ended it: what its ranks had waited in is in their pages still."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .exit_reasons import gone, ran_out_of_time, said
from .patience import ENOUGH, USUAL
from .work import Work

if TYPE_CHECKING:
    from ...model import ProcessGroup, Rank
    from .groups import Group
    from .job import Job

# The signal's time is known to milliseconds (exit_reasons.py), however long the ranks take to die of it; what is chosen
# is the wait from which a job was not well. Ranks of a job that trains wait for one another for milliseconds, but also
# for a checkpoint, an evaluation or a first batch. Who ends a job that hangs has watched it for longer than that.
_PATIENCE = 10.0
_TOGETHER = 5.0  # ranks that run out of time in one operation end so close to each other
_AT_ONCE = 1.0  # a rank says what it ends of as soon as it gives up
_LEAST_PATIENCE = 5.0  # where it is known what is usual


def rewound(job: Job, seconds: float, patience: float | None = None) -> Job:
    """So many seconds ago. All ranks that are seen live in it, and a wait that was long then is a hang.

    torch counts an operation that fails with the job as completed: it was open then, for as long as those who had not
    entered it had been in no operation of the group; and for long, where a rank ran out of time in it.

    Args:
        patience: how long a wait has to be to be none of a job that is well, if that is known.
    """
    gate = min(job.thresholds.hang_seconds, _patience(job, seconds) if patience is None else patience)
    ranks = {number: _alive(rank, seconds) for number, rank in job.ranks.items()}
    back = {group.id: _Group(job, group, seconds, gate) for group in job.groups.values()}
    for number, rank in ranks.items():
        now = job.ranks[number]
        rank.process_groups = [
            back[group.id].member(group, _since_last(now, group, seconds)) for group in now.process_groups
        ]
    thresholds = replace(job.thresholds, hang_seconds=gate)
    phases = job.phases | {number: rank.phase for number, rank in ranks.items() if rank.phase}
    return replace(job, ranks=ranks, phases=phases, thresholds=thresholds, work=Work())


def _alive(rank: Rank, seconds: float) -> Rank:
    process = rank.process
    if not process.is_alive:
        process = replace(process, life="running", state="", gone_seconds=None)
    activity_seconds = _before(rank.activity_seconds, seconds)
    return replace(
        rank,
        process=process,
        heartbeat_seconds=max(rank.heartbeat_seconds - seconds, 0.0) if rank.process.is_alive else 0.0,
        activity=rank.activity if activity_seconds is None or activity_seconds > 0 else "",
        activity_seconds=activity_seconds,
        setup_seconds=_before(rank.setup_seconds, seconds),
    )


class _Group:
    """What members of one group showed then."""

    def __init__(self, job: Job, group: Group, seconds: float, gate: float) -> None:
        self._seconds = seconds
        self._gate = gate
        self._timed_out = {
            member.completed
            for number, member in group.members.items()
            if number in job.ranks
            and gone(job.ranks[number]) >= seconds - _TOGETHER
            and _timed_out_in(job.ranks[number], member)
        }
        self._outside = [
            (member.enqueued, member.idle_seconds - seconds)
            for member in group.members.values()
            if member.open_seconds is None and member.idle_seconds is not None and member.idle_seconds > seconds
        ]
        self._open: dict[int, float] = {}  # by number of an operation: for how long members had been in it
        for member in group.members.values():
            if member.open_seconds is not None:
                number = member.open_sequence
                self._open[number] = max(self._open.get(number, 0.0), member.open_seconds - seconds)
        # Who has never been in an operation of the group tells nothing of when it began to be missing.
        self._is_new_to_some = any(
            member.open_seconds is None and member.idle_seconds is None for member in group.members.values()
        )

    def member(self, own: ProcessGroup, since_last: float | None) -> ProcessGroup:
        """Args:
        since_last: for how long the rank had completed nothing else.
        """
        if own.open_seconds is not None:
            waited = own.open_seconds - self._seconds
            return replace(own, open_seconds=max(waited, 0.0), idle_seconds=_before(own.idle_seconds, self._seconds))
        has_timed_out = own.completed in self._timed_out
        is_later = own.idle_seconds is not None and own.idle_seconds > self._seconds + (
            _AT_ONCE if has_timed_out else 0
        )
        if own.idle_seconds is None or is_later or (own.is_pairwise and not has_timed_out) or own.completed < 1:
            return replace(own, idle_seconds=_before(own.idle_seconds, self._seconds))
        ages = [age for enqueued, age in self._outside if enqueued < own.completed]
        ages += [since_last] if self._is_new_to_some and since_last is not None else []
        if not ages:  # all had entered it: since the one that is in it still had, at most
            ages = [self._open.get(own.completed, 0.0), *([since_last] if since_last is not None else [])]
        waited = max(min(ages), self._gate if has_timed_out else 0.0)
        return replace(own, completed=own.completed - 1, open_seconds=waited, idle_seconds=waited)


def _timed_out_in(rank: Rank, member: ProcessGroup) -> bool:
    """Whether it ended because its last operation of this group took too long."""
    age = member.idle_seconds
    return (
        ran_out_of_time(rank) and member.open_seconds is None and age is not None and abs(age - said(rank)) <= _AT_ONCE
    )


def _before(age: float | None, seconds: float) -> float | None:
    return None if age is None else max(age - seconds, 0.0)


def _since_last(rank: Rank, group: ProcessGroup, seconds: float) -> float | None:
    """How long before that time a rank had completed an operation of another group, or its set-up."""
    ages = [rank.setup_seconds, *(other.idle_seconds for other in rank.process_groups if other.id != group.id)]
    return min((age - seconds for age in ages if age is not None and age > seconds), default=None)


def _patience(job: Job, seconds: float) -> float:
    """How long a wait has to be to be none of a job that is well."""
    known = (_rate(rank, group, seconds) for rank in job.ranks.values() for group in rank.process_groups)
    rates = [rate for rate in known if rate]
    return min(_PATIENCE, max(_LEAST_PATIENCE, USUAL / min(rates))) if rates else _PATIENCE


def _rate(rank: Rank, group: ProcessGroup, seconds: float) -> float | None:
    """Operations per second in good times; of a job that ran too briefly to know, from its set-up to the last one."""
    if group.baseline_rate or rank.setup_seconds is None or group.idle_seconds is None:
        return group.baseline_rate
    elapsed = rank.setup_seconds - max(group.idle_seconds, seconds)
    return group.completed / elapsed if group.completed >= ENOUGH and elapsed > 0 else None
