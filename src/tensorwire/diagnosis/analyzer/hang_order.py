"""Ranks that entered operations in another order than the rest (H2): seen in a circle, or by what others go on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import words
from .confidence import Basis
from .out_of_step import out_of_step
from .waits import most_prominent

if TYPE_CHECKING:
    from ..model import Operation
    from .job import Job
    from .verdict import Verdict
    from .waits import Wait, WaitGraph


def opposite_order(job: Job, graph: WaitGraph, circle: list[Wait]) -> Verdict:
    """H2 across process groups: each waits for ranks that are blocked in another one.

    Ranks that entered them in another order than most are to blame.
    """
    lacked = {number for wait in circle for number in wait.missing}
    sides = [sorted(lacked.intersection(wait.blocked)) for wait in circle]
    places = [wait.title for wait in circle]
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


def left_order(job: Job, graph: WaitGraph, component: list[Wait], strays: list[int]) -> Verdict:
    """H2: these wait for ranks that go on elsewhere, as all others do."""
    wait = most_prominent([wait for wait in component if not set(strays).isdisjoint(wait.blocked)] or component[:1])
    lacked = sorted(wait.unblocked)
    what = wait.title
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
                    f"rank {number} has entered #{own.enqueued} of {own.title}, "
                    f"the other ranks #{min(others)}" + (f" to #{max(others)}" if max(others) > min(others) else "")
                )
    return facts[:6]
