"""The wait-for graph: operations that ranks are in, the ranks they lack, and the operations those are in instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import Operation, ProcessGroup, Rank
    from .job import Group, Job

BLOCKED_SHARE = 0.1
"""An operation open for this share of the hang gate blocks its rank; a younger one may be part of normal work."""

_FRESH_SECONDS = 1.0  # counts that are no older are those of now


@dataclass(eq=False, slots=True)
class Wait:
    """The lowest operation of a process group that ranks are blocked in; of a send or receive, one rank's end."""

    group: Group
    sequence: int
    inside: list[int]
    missing: list[int]  # members in view that have not entered it
    seconds: float  # that the longest of the blocked ranks has waited
    blocked: list[int]  # ranks inside, and those waiting in later operations of the group
    unblocked: list[int] = field(default_factory=list)  # of the missing, those that no operation blocks
    next: list[Wait] = field(default_factory=list)  # what blocks the others
    is_pairwise: bool = False  # a send or receive

    @property
    def operations(self) -> dict[int, Operation]:
        """What the ranks inside called, as far as it is known."""
        members = self.group.members
        found = {number: members[number].operation for number in self.inside}
        return {number: op for number, op in found.items() if op is not None and op.sequence == self.sequence}


class WaitGraph:
    """All waits of a job that are older than a share of the hang gate, linked by which rank blocks which."""

    def __init__(self, job: Job) -> None:
        self._blocked_seconds = BLOCKED_SHARE * job.thresholds.hang_seconds
        self.waits: list[Wait] = []
        self._pairs: dict[tuple[str, int, int], Wait] = {}
        for group in job.groups.values():
            self._add(job, group)
        of_missing: dict[int, list[Wait]] = {number: [] for wait in self.waits for number in wait.missing}
        for wait in self.waits:
            for number in wait.blocked:
                if number in of_missing:
                    of_missing[number].append(wait)
        self._before: dict[int, list[Wait]] = {}
        for wait in self.waits:
            self._link(wait, of_missing)

    def victims(self, roots: list[Wait]) -> set[int]:
        """Ranks that wait, directly or through others, for these."""
        return {number for wait in self._leading_to(roots) for number in wait.blocked}

    def circles(self, waits: list[Wait]) -> list[list[Wait]]:
        """Of these, the sets in which each wait leads to every other and to nothing else.

        None where every wait leads to a root: one where nobody is missing, or a missing rank is unblocked. Whole sets,
        not one way round in each, since which way that is would depend on how the ranks are numbered.
        """
        roots = [wait for wait in self.waits if wait.unblocked or not wait.missing]
        explained = {id(wait) for wait in self._leading_to(roots)}
        # Backwards from one wait after another: each of a set is behind all that lead to it, so a start that no later
        # start leads back to is in such a set.
        seen = set(explained)
        starts = [wait for wait in waits if _closure([wait], self._preceding, seen)]
        seen = set(explained)
        ends = [wait for wait in reversed(starts) if _closure([wait], self._preceding, seen)]
        return [self.reached_from([wait]) for wait in ends]

    def reached_from(self, starts: list[Wait]) -> list[Wait]:
        """These, and all that they wait for through others."""
        return _closure(starts, lambda wait: wait.next, set())

    def _leading_to(self, roots: list[Wait]) -> list[Wait]:
        """These, and all that waits for them through others."""
        return _closure(roots, self._preceding, set())

    def _preceding(self, wait: Wait) -> list[Wait]:
        return self._before.get(id(wait), [])

    def _add(self, job: Job, group: Group) -> None:
        # Of the largest jobs this sees tens of thousands of members: it makes numbers, not objects to collect.
        least, members, ranks = self._blocked_seconds, group.members, job.ranks
        older = [number for number, process_group in members.items() if process_group.is_open_for(least)]
        if not older:
            return
        # In counts that stand still an operation looks open for ever: what they say is how old it was then.
        known = [number for number in older if _is_known(ranks[number], members[number], least)]
        if not known and any(ranks[number].heartbeat_seconds < _FRESH_SECONDS for number in members):
            return  # those that are heard of are not blocked
        older = known or older
        paired = {number for number in older if members[number].is_pairwise}
        for number in paired:
            self._add_pair(job, group, number, members[number])
        at = {number: members[number].open_sequence for number in older if number not in paired}
        if not at:
            return
        sequence = min(at.values())
        missing = [
            number
            for number, process_group in members.items()
            if number in paired or (number not in at and not process_group.has_entered(sequence))
        ]
        age = max(members[number].open_seconds or 0.0 for number in at)
        inside = [number for number, position in at.items() if position == sequence]
        self.waits.append(Wait(group, sequence, inside, missing, age, list(at)))

    def _add_pair(self, job: Job, group: Group, number: int, process_group: ProcessGroup) -> None:
        operation = process_group.operation
        peer = operation.root if operation else -1
        other = group.members.get(peer)
        age = process_group.open_seconds or 0.0
        if other is None or not _matches(process_group, other, number):
            missing = [peer] if peer in job.ranks else []  # it may never have had to do with these messages
            self.waits.append(
                Wait(group, process_group.open_sequence, [number], missing, age, [number], is_pairwise=True)
            )
            return
        known = self._pairs.get((group.id, peer, number))  # from the other end
        if known is None:
            known = self._pairs[group.id, number, peer] = Wait(
                group, process_group.open_sequence, sorted((number, peer)), [], age, [], is_pairwise=True
            )
            self.waits.append(known)
        known.blocked.append(number)
        known.seconds = max(known.seconds, age)

    def _link(self, wait: Wait, of_missing: dict[int, list[Wait]]) -> None:
        following: dict[int, Wait] = {}
        for number in wait.missing:
            others = [other for other in of_missing[number] if other is not wait]
            if not others:
                wait.unblocked.append(number)
            for other in others:
                following[id(other)] = other
        wait.next = list(following.values())
        for other in wait.next:
            self._before.setdefault(id(other), []).append(wait)


def _closure(starts: list[Wait], step: Callable[[Wait], list[Wait]], seen: set[int]) -> list[Wait]:
    """The starts and all that the step leads to, without those whose id was seen before; `seen` grows by them."""
    found = []
    queue = list(starts)
    while queue:
        wait = queue.pop()
        if id(wait) not in seen:
            seen.add(id(wait))
            found.append(wait)
            queue += step(wait)
    return found


def _is_known(rank: Rank, process_group: ProcessGroup, seconds: float) -> bool:
    """Whether the operation was open for so long when the rank was last heard of."""
    age = rank.heartbeat_seconds
    return age < _FRESH_SECONDS or process_group.is_open_for(seconds + age)


def _matches(process_group: ProcessGroup, other: ProcessGroup, number: int) -> bool:
    """Whether the peer is in the other half of this send or receive."""
    mine, theirs = process_group.operation, other.operation
    return (
        other.open_seconds is not None
        and mine is not None
        and theirs is not None
        and theirs.is_pairwise
        and theirs.root in (number, -1)
        and ("send" in mine.name) != ("send" in theirs.name)
    )
