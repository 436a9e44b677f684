"""The wait-for graph: operations that ranks are in, the ranks they lack, and the operations those are in instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .. import words

if TYPE_CHECKING:
    from ..model import Operation
    from .groups import Group
    from .job import Job

BLOCKED_SHARE = 0.1
"""An operation open for this share of the hang gate blocks its rank; a younger one may be part of normal work."""

_FRESH_SECONDS = 1.0  # counts that are no older are those of now


@dataclass(eq=False)
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

    @cached_property
    def operations(self) -> dict[int, Operation]:
        """What the ranks inside called, as far as it is known."""
        found = self.group.operations(self.inside)
        return {number: op for number, op in found.items() if op.sequence == self.sequence}

    @property
    def title(self) -> str:
        """ "all_reduce #121 of default_pg"."""
        named = next((operation for operation in self.operations.values() if operation.name), None)
        return words.numbered(named, self.sequence, self.group.title)


class WaitGraph:
    """All waits of a job that are older than a share of the hang gate, linked by which rank blocks which."""

    def __init__(self, job: Job) -> None:
        self._blocked_seconds = BLOCKED_SHARE * job.thresholds.hang_seconds
        self.waits: list[Wait] = []
        self._pairs: dict[tuple[str, int, int], Wait] = {}
        self._ranks = job.ranks
        for group in job.groups.having(job.columns.rows.open_seconds >= self._blocked_seconds):
            self._add(group)
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
        return {number for wait in self.leading_to(roots) for number in wait.blocked}

    def circles(self, waits: list[Wait]) -> list[list[Wait]]:
        """Of these, the sets in which each wait leads to every other and to nothing else.

        None where every wait leads to a root: one where nobody is missing, or a missing rank is unblocked. Whole sets,
        not one way round in each, since which way that is would depend on how the ranks are numbered.
        """
        roots = [wait for wait in self.waits if wait.unblocked or not wait.missing]
        explained = {id(wait) for wait in self.leading_to(roots)}
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

    def leading_to(self, roots: list[Wait]) -> list[Wait]:
        """These, and all that waits for them through others."""
        return _closure(roots, self._preceding, set())

    def _preceding(self, wait: Wait) -> list[Wait]:
        return self._before.get(id(wait), [])

    def _add(self, group: Group) -> None:
        # In counts that stand still an operation looks open for ever: what they say is how old it was then.
        least, fresh = self._blocked_seconds, group.heartbeat_seconds < _FRESH_SECONDS
        older = group.open_seconds >= least
        known = older & (fresh | (group.open_seconds >= least + group.heartbeat_seconds))
        if known.any():
            older = known
        elif fresh.any():
            return  # those that are heard of are not blocked
        paired = older & group.pairwise
        for index in np.flatnonzero(paired).tolist():
            self._add_pair(group, index)
        at = older & ~paired
        if not at.any():
            return
        sequence = int(group.open_sequence[at].min())
        missing = paired | (~at & (group.enqueued < sequence))
        are_inside = at & (group.open_sequence == sequence)
        inside, absent, blocked = (group.numbers[each].tolist() for each in (are_inside, missing, at))
        self.waits.append(Wait(group, sequence, inside, absent, float(group.open_seconds[at].max()), blocked))

    def _add_pair(self, group: Group, index: int) -> None:
        number, peer = int(group.numbers[index]), int(group.ends[index])
        sequence, age = int(group.open_sequence[index]), float(group.open_seconds[index])
        other = group.index_of.get(peer)
        if other is None or not _match(group, index, other):
            missing = [peer] if peer in self._ranks else []  # it may never have had to do with these messages
            self.waits.append(Wait(group, sequence, [number], missing, age, [number], is_pairwise=True))
            return
        known = self._pairs.get((group.id, peer, number))  # from the other end
        if known is None:
            known = self._pairs[group.id, number, peer] = Wait(
                group, sequence, sorted((number, peer)), [], age, [], is_pairwise=True
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


def most_prominent(waits: Iterable[Wait]) -> Wait:
    """The one that a verdict on all of these is about."""
    return max(waits, key=_prominence)


def _prominence(wait: Wait) -> tuple[int, float, str, str, bool, int, int]:
    """Never by the numbers of ranks, nor by their order: what is found must not depend on how ranks are numbered."""
    group = wait.group
    count = len(wait.blocked)
    return count, wait.seconds, group.title, group.id, not wait.is_pairwise, -wait.sequence, len(wait.unblocked)


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


def _match(group: Group, index: int, other: int) -> bool:
    """Whether the other member is in the other half of this one's send or receive."""
    return bool(
        not np.isnan(group.open_seconds[other])
        and group.pairwise[other]
        and group.ends[other] in (group.numbers[index], -1)
        and group.sending[index] != group.sending[other]
    )
