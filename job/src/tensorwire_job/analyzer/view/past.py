"""The job as it was a while ago: what its ranks had waited in is in their pages still."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...model import holder_of_lock
from .exit_reasons import LEFT, gone, ran_out_of_time, said, was_in_init
from .work import Work

if TYPE_CHECKING:
    from ...model import Operation, ProcessGroup, Rank
    from .groups import Group
    from .job import Job

_UNKNOWN = float("inf")
_AT_ONCE = 1.0  # a rank says what it ends of as soon as it gives up
_TOGETHER = 5.0  # ranks that run out of time in one operation end so close to each other


def rewound(job: Job, seconds: float, gate: float) -> Job:
    """So many seconds ago, with another hang gate. All ranks live in it but those that had left well.

    torch counts an operation that fails with the job as completed: it was open then, since its rank had completed
    another one, and since those that have not entered it had been in no operation of the group. Where a rank ran out
    of time in it, it was open for the gate.
    """
    groups = {group.id: _PastOperations(job, group, seconds, gate) for group in job.groups.values()}
    ranks = {number: _rank(rank, seconds, groups) for number, rank in job.ranks.items()}
    phases = job.phases | {number: rank.phase for number, rank in ranks.items() if rank.phase}
    return replace(job, ranks=ranks, phases=phases, thresholds=replace(job.thresholds, hang_seconds=gate), work=Work())


def _rank(rank: Rank, seconds: float, groups: dict[str, _PastOperations]) -> Rank:
    process = rank.process
    has_left = process.exit_reason in LEFT and gone(rank) > seconds
    if not process.is_alive and not has_left:
        process = replace(process, life="running", state="", gone_seconds=None)
    if said(rank) <= seconds:
        process = replace(process, exit_reason="", exit_kind="")
    has_begun = rank.activity_seconds is None or rank.activity_seconds > seconds
    # A lock is free once its holder has ended: what was entered with it was not entered then.
    was_locked = has_begun and holder_of_lock(rank.activity) is not None
    return replace(
        rank,
        process=process,
        process_groups=[
            groups[own.id].of(rank, _not_yet(own, seconds) if was_locked else own) for own in rank.process_groups
        ],
        heartbeat_seconds=max(_page_seconds(rank) - seconds, 0.0),
        activity=rank.activity if has_begun else "",
        activity_seconds=_before(rank.activity_seconds, seconds),
        setup="in init" if was_in_init(rank) else rank.setup,
        setup_seconds=_before(rank.setup_seconds, seconds),
    )


def _not_yet(own: ProcessGroup, seconds: float) -> ProcessGroup:
    """Without what was entered later than so many seconds ago: an operation that is open, or that failed since."""
    age = own.idle_seconds if own.open_seconds is None else own.open_seconds
    if age is None or age > seconds or own.is_pairwise:
        return own
    before = own.open_sequence - 1 if own.open_seconds is not None else own.completed - 1
    return replace(own, enqueued=before, completed=before, open_seconds=None, idle_seconds=None)


def _page_seconds(rank: Rank) -> float:
    """The age of its page."""
    return max(rank.heartbeat_seconds, gone(rank))


class _PastOperations:
    """The operations that the members of one group were in."""

    def __init__(self, job: Job, group: Group, seconds: float, gate: float) -> None:
        self._seconds, self._gate = seconds, gate
        self._timed_out = set[int]()  # operations that took members too long
        self._open: dict[int, float] = {}  # by the number of an operation, for how long a member had been in it
        stayed = set[int]()  # of these, those that pages had as open for a while, or when the job ended
        self._since: list[tuple[int, float]] = []  # what members had entered, and since when nothing more
        for rank, own in ((job.ranks[number], group.member(number)) for number in group.members):
            age = own.open_seconds if own.open_seconds is not None else own.idle_seconds
            age = _UNKNOWN if age is None else age
            self._since.append((own.enqueued, age - seconds))
            if own.open_seconds is not None:
                number, page = own.open_sequence, _page_seconds(rank)
                self._open[number] = max(self._open.get(number, 0.0), own.open_seconds - seconds)
                if page <= seconds + _AT_ONCE or own.open_seconds > page + _AT_ONCE:
                    stayed.add(number)
            elif ran_out_of_time(rank) and gone(rank) >= seconds - _TOGETHER and abs(age - said(rank)) <= _AT_ONCE:
                self._timed_out.add(own.completed)
        self._first_stayed = sorted(stayed)[:1]  # the least; none if there are none
        self._known: dict[int, float | None] = {}

    def of(self, rank: Rank, own: ProcessGroup) -> ProcessGroup:
        """A member's view of then."""
        idle = _before(own.idle_seconds, self._seconds)
        if own.open_seconds is not None:
            return replace(own, open_seconds=max(own.open_seconds - self._seconds, 0.0), idle_seconds=idle)
        has_timed_out = own.completed in self._timed_out
        is_earlier = own.idle_seconds is None or own.idle_seconds > self._seconds + _AT_ONCE * has_timed_out
        if is_earlier or (own.is_pairwise and not has_timed_out) or own.completed < 1:
            return replace(own, idle_seconds=idle)
        number = own.completed if own.is_pairwise else min((own.completed, *self._first_stayed))
        outside = self._outside(number)
        ages = [self._open.get(number, 0.0)] if outside is None else [outside, *_since_last(rank, own, self._seconds)]
        waited = max(min(ages), self._gate if has_timed_out else 0.0)
        if waited == _UNKNOWN:  # of the first operation of all: it is not known since when it could have been open
            waited = self._gate
        return replace(
            own, completed=number - 1, operation=_called(rank, own, number), open_seconds=waited, idle_seconds=waited
        )

    def _outside(self, number: int) -> float | None:
        """For how long a member that had not entered the operation had been in none, the least; None without one."""
        if number not in self._known:
            ages = (age for entered, age in self._since if entered < number and age > 0.0)
            self._known[number] = min(ages, default=None)
        return self._known[number]


def _called(rank: Rank, own: ProcessGroup, number: int) -> Operation | None:
    # The page forgets the root of an operation once it counts as completed; the history does not.
    called = [call.operation for call in rank.calls if call.group == own.id]
    known = (*(each for each in called if each.is_pairwise == own.is_pairwise), own.operation)
    return next((each for each in known if each is not None and each.sequence == number), None)


def _before(age: float | None, seconds: float) -> float | None:
    return None if age is None else max(age - seconds, 0.0)


def _since_last(rank: Rank, own: ProcessGroup, seconds: float) -> list[float]:
    """How long before that time a rank had completed operations of other groups, and its set-up."""
    ages = [rank.setup_seconds, *(other.idle_seconds for other in rank.process_groups if other.id != own.id)]
    return [age - seconds for age in ages if age is not None and age > seconds]
