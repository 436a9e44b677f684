"""Ranks that have not entered what others wait in (H1), and the few cases in which these are not to blame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import words
from .common_waits import called_another, in_common_waits
from .confidence import Basis
from .hang_inside import stopped_inside
from .hang_order import left_order
from .out_of_step import out_of_step
from .patience import LONG, RECENT_SHARE, is_unusual
from .waits import most_prominent

if TYPE_CHECKING:
    from .job import Job
    from .transport import Transport
    from .verdict import Verdict
    from .waits import Wait, WaitGraph

_COMPILES = "torch.compile"
_MAX_ACCOUNTS = 5
_MAX_FACTS = 3


def not_entered(job: Job, transport: Transport, graph: WaitGraph, component: list[Wait]) -> Verdict:
    """The verdict on waits that lack unblocked ranks in common. The first of these rules that holds decides:

    1. All of these ranks wait in something that no process group counts, in which the others are missing: H2.
    2. All of them complete other operations meanwhile, or all that wait for them do, and none of the groups that wait
       used to complete operations often: a notice, for a while. An evaluation waits for trainers like this.
    3. All of them complete other operations meanwhile, and ranks that wait for them have left the order of operations:
       H2 on the latter.
    4. It is one stopped rank, which sent data after the others had entered: it was inside, H3.
    5. Else H1 on those that do not wait in something of the first kind; where these are all stopped, on every rank
       that is.
    """
    unblocked = {number for wait in component for number in wait.unblocked}
    wait = most_prominent(component)
    in_common = in_common_waits(job, unblocked, wait.group.size)
    if in_common == unblocked:
        return called_another(job, wait, in_common)
    absence = _absence(job, graph, component, unblocked - in_common, sorted(in_common))
    if _may_be_meant(job, graph, component, absence):
        return _goes_on(job, component, absence)
    if len(absence.moving) == len(absence.suspects):
        waiting = {number for number in absence.victims if not _moves_on(job, number, component)}
        strays = [number for number in out_of_step(job) if number in waiting]
        if strays:
            return left_order(job, graph, component, strays)
    if len(absence.suspects) == 1 and _was_inside(job, transport, absence.wait, absence.suspects[0]):
        return stopped_inside(job, absence.wait, absence.suspects[0], len(absence.victims))
    return _verdict(job, absence)


@dataclass(frozen=True, slots=True)
class _Absence:
    """Who has not come, and who waits for them."""

    wait: Wait  # the most prominent one that lacks a suspect
    suspects: list[int]  # unblocked ranks that are in no common wait, the one that is furthest behind first
    named: list[int]  # of the suspects, those that this wait lacks
    moving: list[int]  # of the suspects, those that complete other operations meanwhile
    in_common: list[int]  # the other unblocked ranks
    victims: set[int]  # who waits for all these, directly or through others
    stopped: list[int]  # other members whose processes are stopped, where those of the suspects all are


def _absence(job: Job, graph: WaitGraph, component: list[Wait], absent: set[int], in_common: list[int]) -> _Absence:
    """What a verdict on these absent ranks is about. Ranks that have declared what they do are suspected last."""
    wait = most_prominent(wait for wait in component if not absent.isdisjoint(wait.unblocked))
    members = wait.group.members
    # A rank that is missing here may be in view in other process groups only for what it lacks there.
    entered = {number: members[number].enqueued for number in wait.unblocked if number in members}
    suspects = sorted(absent, key=lambda number: (number in job.phases, entered.get(number, wait.sequence), number))
    waiting = graph.victims(component) - absent
    stopped = set(job.columns.numbers[job.columns.places.are_stopped].tolist())
    also_stopped = stopped.intersection(wait.group.numbers.tolist()) - absent if absent <= stopped else set()
    return _Absence(
        wait,
        suspects,
        named=[number for number in suspects if number in wait.unblocked],
        moving=[number for number in suspects if _moves_on(job, number, component)],
        in_common=in_common,
        victims=waiting - also_stopped,
        stopped=sorted(also_stopped),
    )


def _may_be_meant(job: Job, graph: WaitGraph, component: list[Wait], absence: _Absence) -> bool:
    """Whether a job that is well may be like this: nobody is stuck who is waited for, or nobody waits."""
    if max(wait.seconds for wait in component) >= LONG * job.thresholds.hang_seconds:
        return False
    if not (_all_move_on(job, absence.suspects, component) or _all_move_on(job, _inside(component), component)):
        return False
    return not any(is_unusual(job, wait) for wait in graph.leading_to(component))


def _inside(component: list[Wait]) -> list[int]:
    return sorted({number for wait in component for number in wait.blocked})


def _all_move_on(job: Job, numbers: list[int], component: list[Wait]) -> bool:
    return all(_moves_on(job, number, component) for number in numbers)


def _goes_on(job: Job, component: list[Wait], absence: _Absence) -> Verdict:
    """A notice on ranks that have not entered an operation, and on who is in it."""
    wait, named, inside = absence.wait, absence.named, sorted(absence.wait.blocked)
    nobody_waits = _all_move_on(job, _inside(component), component)
    if nobody_waits:
        summary = (
            f"{words.ranks(inside)} {words.verb(inside, 'has', 'have')} entered {wait.title}, and "
            f"{words.verb(inside, 'goes', 'go')} on elsewhere; {words.ranks(named)} "
            f"{words.verb(named, 'has', 'have')} not entered it"
        )
    else:
        summary = (
            f"{words.ranks(inside)} {words.verb(inside, 'waits', 'wait')} in {wait.title} for {words.ranks(named)}, "
            f"who {words.verb(named, 'goes', 'go')} on elsewhere"
        )
    return job.verdict(
        "hang",
        "TW-H1",
        wait.group,
        absence.suspects,
        summary,
        _facts(job, absence),
        Basis.REMAINDER,
        victims=0 if nobody_waits else len(absence.victims),
        level="notice",
        seconds=wait.seconds,
    )


def _verdict(job: Job, absence: _Absence) -> Verdict:
    """H1; a notice where all have declared what they do instead, or compile."""
    basis, doubts = _basis(job, absence)
    are_declared = all(job.phases.get(number) for number in absence.suspects)
    return job.verdict(
        "hang",
        "TW-H1",
        absence.wait.group,
        [*absence.suspects, *absence.stopped],
        _summary(job, absence),
        [*_facts(job, absence), *doubts],
        basis,
        victims=len(absence.victims),
        level="notice" if are_declared or _compile(job, absence.suspects) else "finding",
        seconds=absence.wait.seconds,
    )


def _summary(job: Job, absence: _Absence) -> str:
    wait, named, victims = absence.wait, absence.named, absence.victims
    entered = f"its end of {wait.title}" if wait.is_pairwise else wait.title
    if absence.stopped:
        stopped = [*absence.suspects, *absence.stopped]
        waiting = f"; {words.count(len(victims), 'rank')} {words.verb(victims, 'waits', 'wait')} for them"
        return f"{words.ranks(stopped)} are stopped, {words.ranks(named)} outside {entered}{waiting if victims else ''}"
    phases = sorted({job.phases[number] for number in absence.suspects if job.phases.get(number)})
    return (
        f"{words.ranks(named)} {words.verb(named, 'has', 'have')} not entered {entered}; "
        f"{words.count(len(victims), 'rank')} {words.verb(victims, 'waits', 'wait')} "
        f"for {words.verb(named, 'it', 'them')}" + (f" (in declared phase: {', '.join(phases)})" if phases else "")
    )


def _facts(job: Job, absence: _Absence) -> list[str]:
    """Who is in the operation, and where each of those is that are not."""
    wait = absence.wait
    facts = [f"{words.count(len(wait.inside), 'rank')} in {wait.title}, the longest for {words.seconds(wait.seconds)}"]
    facts += [job.account(number, where=_progress(wait, number)) for number in absence.named[:_MAX_ACCOUNTS]]
    facts += [f"rank {number} is stopped as well, in an operation" for number in absence.stopped[:_MAX_ACCOUNTS]]
    facts += [job.account(number) for number in absence.in_common[:_MAX_FACTS]]
    free = {*absence.suspects, *absence.in_common}
    blocked = [number for number in wait.missing if number not in free]
    if blocked:
        facts.append(
            f"{words.ranks(blocked)} {words.verb(blocked, 'has', 'have')} not entered it either, "
            f"but {words.verb(blocked, 'waits', 'wait')} in another operation"
        )
    return facts


def _progress(wait: Wait, number: int) -> str:
    """How far a rank is. Messages are not counted alike at their two ends."""
    return "" if wait.is_pairwise else f"has entered #{wait.group.members[number].enqueued} and nothing since"


def _basis(job: Job, absence: _Absence) -> tuple[Basis, list[str]]:
    """A state: they are not in it. A comparison where they may well come, or the trouble may be with those inside; each
    such doubt as evidence, but for what the evidence has anyway."""
    wait, named, moving = absence.wait, absence.named, absence.moving
    doubts = []
    if wait.is_pairwise and not any(job.ranks[number].timed for number in named):
        doubts.append("until operations are timed, nobody sees that a rank waits for what isend or irecv began")
    if moving:
        doubts.append(f"{words.ranks(moving)} {words.verb(moving, 'completes', 'complete')} other operations meanwhile")
    working = {number: doing for number in named if (doing := job.doing(job.ranks[number]))}
    doubts += [
        f"rank {number} makes progress by itself: it {doing}" for number, doing in list(working.items())[:_MAX_FACTS]
    ]
    may_pause = any(job.is_busy(job.ranks[number]) for number in named)  # whoever writes or compiles does
    are_most = 2 * len(absence.suspects) > wait.group.size and not absence.stopped
    return Basis.COMPARISON if doubts or may_pause or are_most else Basis.STATE, doubts


def _compile(job: Job, numbers: list[int]) -> bool:
    """Whether these ranks compile, and do get on with it: that takes long, and not as long on every rank.

    Between two graphs a rank does not compile for a moment. It works then all the same, and others compile.
    """
    ranks = [job.ranks[number] for number in numbers]
    return (
        any(rank.activity == _COMPILES for rank in ranks)
        and all(rank.activity in (_COMPILES, "") for rank in ranks)
        and all(job.has_done(rank, job.thresholds.hang_seconds) for rank in ranks)
    )


def _moves_on(job: Job, number: int, component: list[Wait]) -> bool:
    """Whether a rank has completed an operation elsewhere of late: it is not stuck, whatever it lacks here."""
    recent = RECENT_SHARE * job.thresholds.hang_seconds
    here = {wait.group.id for wait in component}
    rank = job.ranks[number]
    ages = [g.idle_seconds for g in rank.process_groups if g.id not in here and g.idle_seconds is not None]
    return min(ages, default=recent) < recent and rank.process.is_alive


def _was_inside(job: Job, transport: Transport, wait: Wait, number: int) -> bool:
    """Whether a stopped rank, whose counts stand still, sent data while the others were in the operation it lacks."""
    member = wait.group.members.get(number)
    return (
        member is not None
        and job.ranks[number].process.is_stopped
        and member.enqueued == wait.sequence - 1
        and transport.has_sent(job, number, wait.seconds)
    )
