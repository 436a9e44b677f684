"""Ranks outside of what others wait in: not entered (H1), or blocked in a circle of process groups (H2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import words
from .common_waits import called_another, waits_in_common
from .confidence import Basis
from .hang_inside import stopped_inside
from .out_of_step import out_of_step

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..model import Level, Operation
    from .job import Job
    from .transport import Transport
    from .verdict import Verdict
    from .waits import Wait, WaitGraph

_COMPILES = "torch.compile"
_RECENT = 0.3  # of the hang gate: within it, a rank that goes on completes something


def not_entered(job: Job, transport: Transport, graph: WaitGraph, component: list[Wait]) -> Verdict:
    """H1: what the unblocked ranks of these waits have not entered. The lowest sequence number is the first suspect.

    A notice where all of them declared what they do instead; a rank that was stopped inside after all is H3. Ranks that
    complete other operations meanwhile are not stuck: if others have left the order of operations, those are to blame.
    """
    unblocked = {number for other in component for number in other.unblocked}
    elsewhere = {number for number in unblocked if waits_in_common(job.ranks[number])}
    if elsewhere == unblocked:
        wait = max(component, key=_prominence)
        return called_another(job, wait, _what(wait), elsewhere)
    unblocked -= elsewhere
    wait = max((wait for wait in component if not unblocked.isdisjoint(wait.unblocked)), key=_prominence)
    members = wait.group.members
    behind = {number: members[number].enqueued for number in wait.unblocked if number in members}
    victims = graph.victims(component) - unblocked
    moving = [number for number in unblocked if _moves_on(job, number, component)]
    if len(moving) == len(unblocked):
        strays = [number for number in out_of_step(job) if number in victims]
        if strays:
            return _left_order(job, graph, component, strays)
    what = _what(wait)
    # A rank that is missing here may be in view in other process groups only for what it lacks there.
    order = sorted(unblocked, key=lambda number: (number in job.phases, behind.get(number, wait.sequence), number))
    if len(order) == 1 and _was_inside(job, transport, wait, order[0]):
        return stopped_inside(job, wait, order[0], len(victims))
    named = [number for number in order if number in wait.unblocked]
    evidence = [f"{words.count(len(wait.inside), 'rank')} in {what}, the longest for {words.seconds(wait.seconds)}"]
    evidence += [_account(job, number, None if wait.is_pairwise else behind[number]) for number in named[:5]]
    blocked = [number for number in wait.missing if number not in unblocked | elsewhere]
    if elsewhere:
        facts = {number: f"rank {number} is in {job.ranks[number].activity}" for number in sorted(elsewhere)}
        evidence += list(facts.values())[:3]
    if blocked:
        evidence.append(
            f"{words.ranks(blocked)} {words.verb(blocked, 'has', 'have')} not entered it either, "
            f"but {words.verb(blocked, 'waits', 'wait')} in another operation"
        )
    basis = Basis.STATE
    if wait.is_pairwise and not any(job.ranks[number].timed for number in named):
        basis = Basis.COMPARISON
        evidence.append("until operations are timed, nobody sees that a rank waits for what isend or irecv began")
    if moving:
        basis = Basis.COMPARISON
        evidence.append(
            f"{words.ranks(moving)} {words.verb(moving, 'completes', 'complete')} other operations meanwhile"
        )
    working = {number: doing for number in named if (doing := job.doing(job.ranks[number]))}
    if working:
        basis = Basis.COMPARISON
        evidence += [
            f"rank {number} makes progress by itself: it {doing}" for number, doing in list(working.items())[:3]
        ]
    elif any(job.is_busy(job.ranks[number]) for number in named):
        basis = Basis.COMPARISON  # it writes or compiles, and pauses maybe: it may well come
    if 2 * len(unblocked) > wait.group.size:
        basis = Basis.COMPARISON  # so many that the trouble may as well be with the few
    phases = {job.phases.get(number, "") for number in unblocked}
    entered = f"its end of {what}" if wait.is_pairwise else what
    summary = f"{words.ranks(named)} {words.verb(named, 'has', 'have')} not entered {entered}; "
    summary += f"{words.count(len(victims), 'rank')} {words.verb(victims, 'waits', 'wait')} "
    summary += f"for {words.verb(named, 'it', 'them')}"
    if any(phases):
        summary += f" (in declared phase: {', '.join(sorted(phases - {''}))})"
    level: Level = "notice" if all(phases) or _compile(job, unblocked) else "finding"
    return job.verdict(
        "hang",
        "TW-H1",
        wait.group,
        order,
        summary,
        evidence,
        basis,
        victims=len(victims),
        level=level,
        seconds=wait.seconds,
    )


def opposite_order(job: Job, graph: WaitGraph, circle: list[Wait]) -> Verdict:
    """H2 across process groups: each waits for ranks that are blocked in another one.

    Ranks that entered them in another order than most are to blame.
    """
    lacked = {number for wait in circle for number in wait.missing}
    sides = [sorted(lacked.intersection(wait.blocked)) for wait in circle]
    places = [
        f"{words.numbered(next(iter(w.operations.values()), None), w.sequence)} of {w.group.title}" for w in circle
    ]
    order = sorted(range(len(circle)), key=lambda index: (-len(sides[index]), circle[index].group.id, sides[index]))
    first, second = sides[order[0]], sides[order[1]]
    others = sorted({number for side in sides for number in side} - set(first))
    majority = len(first) > max(len(second), len(others))
    astray = [] if majority else _misaddressed(circle)
    strays = [] if majority or astray else out_of_step(job)
    suspects = others if majority else astray or strays
    evidence = [
        f"{words.ranks(sides[index])} {words.verb(sides[index], 'is', 'are')} in {places[index]} "
        f"for {words.seconds(circle[index].seconds)}, which lacks {words.ranks(circle[index].missing)}"
        for index in order[:4]
    ]
    what = " and ".join(places[index] for index in order[:4])
    if astray:
        summary = f"{words.ranks(astray)} sends to, or receives from, another rank than expects it: ranks are in {what}"
        evidence.append(_left_out(circle, astray[0]))
    elif strays:
        evidence += _order_of(job, strays)
        summary = f"{words.ranks(strays)} left the order of operations that the other ranks follow, who are in {what}"
    elif suspects:
        summary = f"{words.ranks(suspects)} entered {what} in another order than {words.ranks(first)}"
    else:
        summary = f"ranks entered {what} in different orders, and it is unknown which are wrong"
    return job.verdict(
        "hang",
        "TW-H2",
        circle[order[0]].group,
        suspects,
        summary,
        evidence,
        Basis.REMAINDER if astray else Basis.COMPARISON if strays else Basis.STATE,
        victims=len(graph.victims(circle) - set(suspects)),
        seconds=max(wait.seconds for wait in circle),
        sides=[] if suspects else [sides[index] for index in order],
    )


def _misaddressed(circle: list[Wait]) -> list[int]:
    """The one whose message nobody expects while somebody else expects one of it, where there is just one such."""
    alone = _messages(circle)
    found = [
        number
        for number, own in alone.items()
        if any(
            other != own.root and theirs.root == number and (theirs.name == "send") != (own.name == "send")
            for other, theirs in alone.items()
        )
    ]
    return found if len(found) == 1 else []


def _left_out(circle: list[Wait], number: int) -> str:
    """What looks the same: its message is right, and whoever it is for went on without it."""
    own = _messages(circle)[number]
    omitted = f"a receive from rank {number}" if own.name == "send" else f"a send to rank {number}"
    return f"or rank {own.root} left out {omitted}: that looks the same"


def _messages(circle: list[Wait]) -> dict[int, Operation]:
    """What ranks send or receive that have not met the other end."""
    alone = {}
    for wait in circle:
        if wait.is_pairwise and len(wait.inside) == 1:
            operation = wait.operations.get(wait.inside[0])
            if operation is not None and operation.root >= 0:
                alone[wait.inside[0]] = operation
    return alone


def _left_order(job: Job, graph: WaitGraph, component: list[Wait], strays: list[int]) -> Verdict:
    """H2: these wait for ranks that go on elsewhere, as all others do."""
    wait = max(
        (wait for wait in component if not set(strays).isdisjoint(wait.blocked)), default=component[0], key=_prominence
    )
    lacked = sorted(wait.unblocked)
    what = f"{words.numbered(next(iter(wait.operations.values()), None), wait.sequence)} of {wait.group.title}"
    summary = (
        f"{words.ranks(strays)} left the order of operations that the other ranks follow, and "
        f"{words.verb(strays, 'is', 'are')} in {what}; {words.ranks(lacked)} {words.verb(lacked, 'goes', 'go')} on "
        "elsewhere"
    )
    evidence = [f"{words.count(len(wait.inside), 'rank')} in {what}, the longest for {words.seconds(wait.seconds)}"]
    evidence += _order_of(job, strays)
    victims = len(graph.victims(component) - set(strays))
    return job.verdict(
        "hang",
        "TW-H2",
        wait.group,
        strays,
        summary,
        evidence,
        Basis.COMPARISON,
        victims=victims,
        seconds=wait.seconds,
    )


def _order_of(job: Job, strays: list[int]) -> list[str]:
    """How far these are in each of their groups, and how far the others are in groups of that name."""
    facts = []
    for number in strays[:3]:
        for own in job.ranks[number].process_groups:
            others = [
                enqueued
                for group in job.groups.values()
                if (group.name, group.size) == (own.name, own.size)
                for other, enqueued in zip(group.numbers.tolist(), group.enqueued.tolist(), strict=True)
                if other not in strays
            ]
            if others and not own.is_pairwise:
                facts.append(
                    f"rank {number} has entered #{own.enqueued} of {own.name or own.id}, "
                    f"the other ranks #{min(others)}" + (f" to #{max(others)}" if max(others) > min(others) else "")
                )
    return facts[:6]


def _compile(job: Job, numbers: Collection[int]) -> bool:
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
    recent = _RECENT * job.thresholds.hang_seconds
    here = {wait.group.id for wait in component}
    rank = job.ranks[number]
    ages = [g.idle_seconds for g in rank.process_groups if g.id not in here and g.idle_seconds is not None]
    return min(ages, default=recent) < recent and rank.process.is_alive


def _what(wait: Wait) -> str:
    operation = next((op for op in wait.operations.values() if op.name), None)
    return f"{words.numbered(operation, wait.sequence)} of {wait.group.title}"


def _prominence(wait: Wait) -> tuple[int, float, str, str, bool, int, int]:
    """Never by the numbers of ranks, nor by their order: what is found must not depend on how ranks are numbered."""
    group = wait.group
    count = len(wait.blocked)
    return count, wait.seconds, group.title, group.id, not wait.is_pairwise, -wait.sequence, len(wait.unblocked)


def _account(job: Job, number: int, entered: int | None) -> str:
    rank = job.ranks[number]
    last = "is in no operation that the probe sees" if entered is None else f"has entered #{entered} and nothing since"
    text = f"rank {number} {last}"
    if rank.process.is_stopped:
        text += "; its process is stopped"
    elif rank.process.state:
        text += f"; its process is in state {rank.process.state}"
    text = ", ".join([text, *job.whereabouts(rank)])
    if number in job.phases:
        text += f", in declared phase {job.phases[number]!r}" + ("" if rank.phase else ", which has just ended")
    return text


def _was_inside(job: Job, transport: Transport, wait: Wait, number: int) -> bool:
    """Whether a stopped rank, whose counts stand still, sent data while the others were in the operation it lacks."""
    member = wait.group.members.get(number)
    return (
        member is not None
        and job.ranks[number].process.is_stopped
        and member.enqueued == wait.sequence - 1
        and transport.has_sent(job, number, wait.seconds)
    )
