"""Hangs that ended before anyone looked: ranks that waited gave up, by a time-out or because the job was ended.

Who gives up first is a victim like the others. Named is whom they had waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import words
from .confidence import Basis
from .exit_reasons import gone, has_own_words, has_spoken, ran_out_of_time
from .transport import Blame, least_moved
from .verdict import MAX_SUSPECTS

if TYPE_CHECKING:
    from ..model import Code, ProcessGroup, Rank
    from .groups import Group
    from .job import Job
    from .verdict import Verdict

_PATIENCE = 2.0  # ranks of a healthy job enter an operation closer together
_AT_ONCE = 1.0  # a rank says what it dies of as soon as it gives up


@dataclass(slots=True)
class _LastWait:
    """What a rank had long waited in when it ended."""

    witness: int
    end: float  # seconds since the witness gave up
    seconds: float | None  # that it had waited, as far as that is known
    group: Group
    sequence: int  # of the operation
    needed: list[int]  # the ranks that have to enter it, as far as they are in view
    absent: list[int]  # of these, those that had not
    missing: list[int]  # of these, those that did not die before the witness gave up
    unblocked: list[int]  # of these, those that did not wait for others themselves

    @property
    def title(self) -> str:
        return words.numbered(self.own.operation, self.sequence, self.group.title)

    @property
    def own(self) -> ProcessGroup:
        return self.group.members[self.witness]


def post_mortem(job: Job, witnesses: Iterable[int], moment: float, hangs: list[Verdict]) -> Verdict | None:
    """The verdict on what these dead ranks had long waited in.

    That is what was found on it while they lived. Else H1 on the ranks that had not entered it; where all had, H3 on
    those that did not give up as the witnesses did, or unknown. None where nobody had waited long, or for a dead rank.

    Args:
        moment: how well the times of deaths are known.
        hangs: verdicts on hangs that stood when the first of them gave up.
    """
    waits = [wait for number in witnesses for wait in _last_waits(job, number, moment)]
    waits.sort(key=_order)
    kept = next((old for old in hangs if any(_concerns(old, wait) for wait in waits)), None)
    if kept is not None and (kept.finding.suspects or kept.finding.sides):
        return kept
    for wait in waits:
        if wait.unblocked:
            return _not_entered(job, wait, wait.unblocked)
    for wait in waits:
        if not wait.absent:
            return _stopped_inside(job, wait) or kept or _unknown(job, wait)
    for wait in waits:
        if wait.missing:  # each waits for another
            return _not_entered(job, wait, wait.missing)
    return kept


def _order(wait: _LastWait) -> tuple[object, ...]:
    """Who tells first: by what was waited for, and never by the witness's number."""
    known = wait.seconds is not None, -(wait.seconds or 0.0)
    return *known, wait.sequence, wait.group.id, -wait.end, -len(wait.needed), -len(wait.unblocked), -len(wait.missing)


def _last_waits(job: Job, number: int, moment: float) -> Iterator[_LastWait]:
    end = gone(job.ranks[number])
    for own, sequence, seconds in _waited(job.ranks[number]):
        group = job.groups[own.id]
        needed = _needed(group, number)
        died = {other for other in needed if gone(job.ranks[other]) > end + moment}
        if not needed or any(has_own_words(job.ranks[other]) for other in died):
            continue
        absent = [other for other in needed if not _has_entered(job, group, sequence, other, number)]
        missing = [other for other in absent if other not in died]
        unblocked = [other for other in missing if not _waited(job.ranks[other])]
        yield _LastWait(number, end, seconds, group, sequence, needed, absent, missing, unblocked)


def _waited(rank: Rank) -> list[tuple[ProcessGroup, int, float | None]]:
    """The operations that a rank had long waited in when it was last heard of, by number, and for how long.

    torch counts an operation that fails as completed: who ran out of time had waited in one that ended at that moment.
    """
    end, timed_out = gone(rank), ran_out_of_time(rank)
    found: list[tuple[ProcessGroup, int, float | None]] = []
    for own in rank.process_groups:
        if own.open_seconds is not None:
            waited = own.open_seconds - end
            if waited >= _PATIENCE:
                found.append((own, own.open_sequence, waited))
        elif timed_out and own.idle_seconds is not None and abs(own.idle_seconds - end) <= _AT_ONCE:
            found.append((own, own.completed, None))
    return found


def _needed(group: Group, number: int) -> list[int]:
    """The members in view that have to enter what this one is in; none where that is not known."""
    if not group.members[number].is_pairwise:
        return list(group.members)
    peer = group.peers.get(number)
    return [number, peer] if peer is not None and peer in group.members else []


def _has_entered(job: Job, group: Group, sequence: int, other: int, number: int) -> bool:
    member = group.members[other]
    if not group.members[number].is_pairwise:
        return member.has_entered(sequence)
    is_in_one = member.open_seconds is not None or _has_spoken(job, other)
    return other == number or (is_in_one and group.peers.get(other) == number)


def _concerns(old: Verdict, wait: _LastWait) -> bool:
    """Whether a verdict on a hang is about the operation that this rank waited in, or ranks of it."""
    finding = old.finding
    if finding.level != "finding":
        return False
    return finding.process_group == wait.group.title or not set(finding.suspects).isdisjoint(wait.needed)


def _not_entered(job: Job, wait: _LastWait, missing: list[int]) -> Verdict:
    group = wait.group
    missing = sorted(missing, key=lambda number: (group.members[number].enqueued, number))
    inside = [number for number in wait.needed if number not in wait.absent]
    summary = f"{words.ranks(missing)} had not entered {wait.title} when the job ended; "
    summary += f"{words.count(len(inside), 'rank')} had waited for {words.verb(missing, 'it', 'them')}"
    facts = []
    if not wait.own.is_pairwise:  # these are not counted alike
        facts = [f"rank {number} had entered #{group.members[number].enqueued} and nothing since" for number in missing]
    basis = Basis.COMPARISON if 2 * len(missing) <= group.size else Basis.REMAINDER
    return _verdict(job, wait, "TW-H1", summary, Blame(missing, facts[:MAX_SUSPECTS], basis), len(inside))


def _stopped_inside(job: Job, wait: _LastWait) -> Verdict | None:
    blame = _different(job, wait) or least_moved(wait.group)
    if blame is None:
        return None
    where = words.ranks(blame.suspects[:MAX_SUSPECTS])
    summary = f"{wait.title} stopped inside at {where} until {_ending(job, wait)}; {_entered(wait)}"
    return _verdict(job, wait, "TW-H3", summary, blame, len(wait.needed) - len(blame.suspects))


def _unknown(job: Job, wait: _LastWait) -> Verdict | None:
    """None where the job was ended after one of its ranks had gone: that rank may have died."""
    end = gone(job.ranks[wait.witness])
    if not _has_spoken(job, wait.witness) and any(gone(job.ranks[n]) > end + _PATIENCE for n in wait.needed):
        return None
    summary = f"{wait.title} stopped inside until {_ending(job, wait)}, and the cause is unknown; {_entered(wait)}"
    nothing = Blame([], ["no rank is known to have ended in another way than the others"], Basis.REMAINDER)
    return _verdict(job, wait, "TW-UNKNOWN", summary, nothing, len(wait.needed))


def _different(job: Job, wait: _LastWait) -> Blame | None:
    """Who did not give up as the witness did: is stopped, was silent from earlier on, or stayed until it was killed."""
    stopped = [number for number in wait.needed if job.ranks[number].process.is_stopped]
    if stopped:
        return Blame(
            stopped,
            [f"the process of rank {number} is stopped (state T)" for number in stopped[:MAX_SUSPECTS]],
            Basis.STATE,
        )
    if not _has_spoken(job, wait.witness):
        return None
    end = gone(job.ranks[wait.witness])
    quiet = [number for number in wait.needed if not _has_spoken(job, number)]
    ahead = {number: gone(job.ranks[number]) - end for number in quiet}
    silent = [number for number in quiet if ahead[number] > _PATIENCE]
    if silent:
        sign = {number: f"its last sign of life {words.seconds(ahead[number])}" for number in silent[:MAX_SUSPECTS]}
        facts = [f"rank {number} gave {sign[number]} before rank {wait.witness} gave up" for number in sign]
        return Blame(silent, facts, Basis.COMPARISON)
    stayed = [number for number in quiet if ahead[number] < -_PATIENCE]
    names = stayed or quiet
    if not names or 2 * len(names) >= len(wait.needed):
        return None
    how = "outlived ranks that gave up" if stayed else "ended without an exit reason, while others gave up"
    return Blame(names, [f"rank {number} {how}" for number in names[:MAX_SUSPECTS]], Basis.REMAINDER)


def _has_spoken(job: Job, number: int) -> bool:
    return has_spoken(job.ranks[number])


def _ending(job: Job, wait: _LastWait) -> str:
    return "a time-out ended it" if ran_out_of_time(job.ranks[wait.witness]) else "the job was ended"


def _entered(wait: _LastWait) -> str:
    in_view = " in view" if len(wait.group.members) < wait.group.size else ""
    return f"all {words.count(len(wait.needed), 'rank')}{in_view} had entered it"


def _verdict(job: Job, wait: _LastWait, code: Code, summary: str, blame: Blame, num_victims: int) -> Verdict:
    waited = "" if wait.seconds is None else f"after {words.seconds(wait.seconds)} "
    evidence = [f"rank {wait.witness} ended {waited}in {wait.title}"]
    exit_reason = job.ranks[wait.witness].process.exit_reason
    if exit_reason:
        evidence[0] += f", with {exit_reason}"
    return job.verdict(
        "lost",
        code,
        wait.group,
        blame.suspects,
        summary,
        evidence + blame.evidence,
        blame.basis,
        victims=num_victims,
        seconds=wait.end + (wait.seconds or 0.0),
    )
