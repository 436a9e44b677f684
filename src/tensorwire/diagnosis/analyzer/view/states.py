"""The table of states: what each rank waits in at one moment, and whom that lacks; and the graph that this makes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ... import words
from ...model import Link
from ..graph import Graph, Need
from .exit_reasons import LEFT
from .patience import LONG, RECENT_SHARE, is_unusual
from .signatures import sides

if TYPE_CHECKING:
    from ...model import Operation
    from .groups import Group
    from .job import Job

BLOCKED_SHARE = 0.1
"""An operation open for this share of the hang gate blocks its rank; a younger one may be part of normal work."""

IN_ALL = ("new_group", "monitored_barrier")  # activities: all ranks have to come to these
FOR_ANY = "recv from any source"
FOR_KEY = "Store.wait"
IN_INIT = "init_process_group"
_ROOTED = ("broadcast", "scatter", "gather")  # nobody but the root waits for all
_FRESH_SECONDS = 1.0  # counts that are no older are those of now
_MAX_LINKS = 32
_UNSEEN = -1  # the vertex of all ranks that are not in view


@dataclass(eq=False)
class Wait:
    """What ranks wait in: an operation of a group, one end or both ends of a message, or a call no group counts."""

    group: Group | None
    call: str  # the call, if there is no group
    sequence: int
    inside: list[int]
    blocked: list[int]  # these, and those that wait in later operations of the group
    missing: list[int]  # ranks in view that have not come to it
    unseen: list[int]  # ranks that are not in view, and may have to come
    seconds: float  # that the longest of the blocked ranks has waited
    is_pairwise: bool = False
    is_any: bool = False  # one of the missing is enough
    vertex: int = 0  # in the graph: what is waited for if nobody is missing
    is_complete: bool = True  # the members are known
    sides: list[list[int]] = field(default_factory=list)  # of those inside, by what they called

    @cached_property
    def operations(self) -> dict[int, Operation]:
        """What the ranks inside called, as far as it is known."""
        if self.group is None:
            return {}
        found = self.group.operations(self.inside)
        return {number: operation for number, operation in found.items() if operation.sequence == self.sequence}

    @property
    def of_group(self) -> Group:
        """The group, of what is no call that none counts."""
        assert self.group is not None
        return self.group

    @property
    def title(self) -> str:
        """ "all_reduce #121 of default_pg"."""
        if self.group is None:
            return self.call
        named = next((operation for operation in self.operations.values() if operation.name), None)
        return words.numbered(named, self.sequence, self.group.title)

    def told(self, *, lacked: bool = True) -> str:
        """For the evidence: "ranks 0-1 wait in all_reduce #36 of world for rank 2, the longest for 5 min"."""
        who = f"{words.ranks(self.inside)} {words.verb(self.inside, 'waits', 'wait')} in {self.title}"
        for_whom = f" for {words.ranks(self.missing)}" if lacked and self.missing else ""
        return f"{who}{for_whom}, the longest for {words.seconds(self.seconds)}"

    def lacked_by(self, number: int) -> list[int]:
        """The ranks that this rank waits for."""
        own = next((side for side in self.sides if number in side), None)
        others = [] if own is None else [other for side in self.sides if side is not own for other in side]
        return sorted({*self.missing, *others})


class States:
    """The states of all ranks.

    Attributes:
        waits: what ranks wait in.
        moving: ranks that complete operations: they are in no wait that a standstill is made of.
    """

    def __init__(self, job: Job, goes_on: Callable[[Wait], bool] = lambda _: False) -> None:
        self.job = job
        self._least = BLOCKED_SHARE * job.thresholds.hang_seconds
        self._pairs: dict[tuple[str, int, int], Wait] = {}
        self._alive = np.setdiff1d(job.columns.numbers[job.columns.places.are_alive], self._at_the_end())
        self.waits: list[Wait] = []
        groups = job.groups.having(job.columns.rows.open_seconds >= self._least)
        for group in groups:
            self._add(group)
        self.moving = self._moving()
        self.waits += self._calls()
        self.waits.sort(key=lambda wait: (_prominence(wait), [-number for number in wait.inside]), reverse=True)
        self.of: dict[int, list[Wait]] = defaultdict(list)
        needs: dict[int, list[Need]] = defaultdict(list)
        free = {_UNSEEN}
        for index, wait in enumerate(self.waits):
            wait.vertex = -2 - index
            self._link(wait, needs)
            if not wait.missing and len(wait.sides) < 2 and goes_on(wait):
                free.add(wait.vertex)
        self.graph = Graph(needs, free, self._done())
        self._by_vertex = {wait.vertex: wait for wait in self.waits}

    def entered_by_all(self, vertex: int) -> Wait | None:
        """The wait of a vertex that is no rank."""
        return self._by_vertex.get(vertex)

    def links(self, circle: Sequence[int]) -> list[Link]:
        """Each of these ranks with what it waits in for the next one. None of a circle that is one operation, whose
        sides say more, nor of one that is too large to be drawn."""
        if not 1 < len(circle) <= _MAX_LINKS:
            return []
        found = [
            (number, next((wait for wait in self.of[number] if after in wait.lacked_by(number)), None))
            for number, after in zip(circle, (*circle[1:], circle[0]), strict=True)
        ]
        if len({id(wait) for _, wait in found}) < 2:
            return []
        return [Link(number, wait.title) for number, wait in found if wait is not None]

    def leading_to(self, numbers: Iterable[int]) -> list[Wait]:
        """The waits that lack one of these, directly or through others, the nearest first."""
        lacking: dict[int, list[Wait]] = defaultdict(list)
        for wait in self.waits:
            for number in wait.missing if len(wait.sides) < 2 else {*wait.missing, *wait.inside}:
                lacking[number].append(wait)
            if not wait.missing:
                lacking[wait.vertex].append(wait)
        found: dict[int, Wait] = {}
        queue = list(numbers)
        seen = set(queue)
        for number in queue:
            for wait in lacking[number]:
                if id(wait) in found:
                    continue
                found[id(wait)] = wait
                new = [other for other in wait.blocked if other not in seen]
                seen.update(new)
                queue += new
        return list(found.values())

    def _moving(self) -> set[int]:
        """Ranks that have completed an operation of late, of a group that nobody waits in."""
        rows, columns = self.job.columns.rows, self.job.columns
        waited_in = {int(number) for number in rows.groups[rows.open_seconds >= self._least].tolist()}
        recent = rows.idle_seconds < RECENT_SHARE * self.job.thresholds.hang_seconds
        recent &= ~np.isin(rows.groups, list(waited_in)) & columns.places.are_alive[rows.places]
        return set(columns.row_numbers[recent].tolist())

    def _at_the_end(self) -> list[int]:
        """Ranks that have run their script to its end, whether their processes have gone or not. Nobody waits in them,
        and their counts are not read any more."""
        return [n for n in self.job.columns.exit_reasons if self.job.ranks[n].process.exit_kind == "end"]

    def _done(self) -> list[int]:
        """Ranks that have left well: they have nothing more to do."""
        left = [number for number, reason in self.job.columns.exit_reasons.items() if reason in LEFT]
        return [number for number in left if not self.job.ranks[number].process.is_alive]

    def _link(self, wait: Wait, needs: dict[int, list[Need]]) -> None:
        is_overdue = wait.seconds >= LONG * self.job.thresholds.hang_seconds or (
            wait.group is not None and is_unusual(self.job, wait.group, wait.seconds)
        )
        waiting = [number for number in wait.blocked if is_overdue or number not in self.moving]
        lacked = [*wait.missing, *([_UNSEEN] if wait.unseen or not wait.is_complete else [])]
        if wait.is_any and not self.moving.isdisjoint(wait.missing):
            lacked.append(_UNSEEN)  # whoever goes on may be the one
        of_all = Need(lacked or [wait.vertex], is_any=wait.is_any)
        own = self._of_root(wait, lacked)
        of_side: dict[int, Need] = {}
        for side in wait.sides if len(wait.sides) > 1 else ():
            rest = [number for other in wait.sides if other is not side for number in other]
            of_side.update(dict.fromkeys(side, Need([*wait.missing, *rest])))
        if of_side:  # of others it is not known what they called
            of_all = Need([*wait.missing, *of_side])
        for number in waiting:
            self.of[number].append(wait)
            needs[number].append(of_side.get(number) or own.get(number) or of_all)

    def _of_root(self, wait: Wait, lacked: list[int]) -> dict[int, Need]:
        """Of a broadcast, scatter or gather: who is not the root waits for it, and for nobody else before it comes."""
        found: dict[int, Need] = {}
        of_root: dict[int, Need] = {}
        rooted = {n: op.root for n, op in wait.operations.items() if op.name in _ROOTED and op.root >= 0}
        members = self.job.groups.ranks_of(wait.of_group) if rooted else ()
        for number, place in rooted.items():
            root = members[place] if place < len(members) else number
            if root != number and root in lacked:
                found[number] = of_root.setdefault(root, Need([root]))
        return found

    def _add(self, group: Group) -> None:
        # In counts that stand still an operation looks open for ever: what they say is how old it was then.
        least, fresh = self._least, group.heartbeat_seconds < _FRESH_SECONDS
        alive = np.isin(group.numbers, self._alive)
        older = (group.open_seconds >= least) & alive
        known = older & (fresh | (group.open_seconds >= least + group.heartbeat_seconds))
        if known.any():
            older = known
        elif (fresh & alive).any():
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
        seconds = float(group.open_seconds[at].max())
        wait = Wait(group, "", sequence, inside, blocked, absent, self.job.unseen(group), seconds)
        wait.is_complete = group.is_whole
        wait.sides = sides(wait.operations)
        self.waits.append(wait)

    def _add_pair(self, group: Group, index: int) -> None:
        number, peer = int(group.numbers[index]), int(group.ends[index])
        sequence, age = int(group.open_sequence[index]), float(group.open_seconds[index])
        other = group.index_of.get(peer)
        if other is None or not _match(group, index, other):
            missing = [peer] if peer in self.job.ranks else []  # it may never have had to do with these messages
            wait = Wait(group, "", sequence, [number], [number], missing, [] if missing else [peer], age)
            wait.is_pairwise, wait.is_complete = True, bool(missing)
            self.waits.append(wait)
            return
        known = self._pairs.get((group.id, peer, number))  # from the other end
        if known is None:
            known = Wait(group, "", sequence, sorted((number, peer)), [], [], [], age, is_pairwise=True)
            signatures = {op.signature for op in group.operations(known.inside).values() if op.signature}
            known.sides = [[each] for each in known.inside] if len(signatures) > 1 else []
            self._pairs[group.id, number, peer] = known
            self.waits.append(known)
        known.blocked.append(number)
        known.seconds = max(known.seconds, age)

    def _calls(self) -> list[Wait]:
        """Waits that no process group counts. Stacks tell of them, and set-ups."""
        job = self.job
        alive = set(self._alive.tolist())
        at: dict[str, dict[int, float]] = defaultdict(dict)
        for number, (activity, seconds) in job.columns.activities.items():
            if number in alive and activity in (*IN_ALL, FOR_ANY, FOR_KEY):
                at[activity][number] = self._least if seconds is None else seconds
        setups = job.columns.setups
        for number in alive:
            if setups[number][0] == "in init":
                at[IN_INIT][number] = setups[number][1] or 0.0
        unseen = [number for number in range(job.world_size) if number not in job.ranks] if at else []
        found = []
        for call, since in sorted(at.items()):
            inside = sorted(number for number, seconds in since.items() if seconds >= self._least)
            if not inside:
                continue
            missing = [number for number in job.ranks if number not in since]
            if call == IN_INIT:
                missing = [number for number in missing if setups[number][0] == "before init"]
            is_any = call in (FOR_ANY, FOR_KEY)
            if is_any and not missing:
                missing = unseen = unseen or [_UNSEEN]
            wait = Wait(None, call, 0, inside, inside, missing, unseen, max(since.values()), is_any=is_any)
            found.append(wait)
        return found


def waits_elsewhere(job: Job) -> bool:
    """Whether a rank may be in what no process group counts."""
    return bool(job.columns.activities) or any(setup == "in init" for setup, _ in job.columns.setups.values())


def most_prominent(waits: Collection[Wait]) -> Wait:
    """The one that a verdict on all of these is about."""
    return max(waits, key=_prominence)


def _prominence(wait: Wait) -> tuple[int, float, str, str, bool, int]:
    """Never by the numbers of ranks, nor by their order: what is found must not depend on how ranks are numbered."""
    name, identity = (wait.group.title, wait.group.id) if wait.group else (wait.call, "")
    return len(wait.blocked), wait.seconds, name, identity, not wait.is_pairwise, -wait.sequence


def _match(group: Group, index: int, other: int) -> bool:
    """Whether the other member is in the other half of this one's send or receive."""
    return bool(
        not np.isnan(group.open_seconds[other])
        and group.pairwise[other]
        and group.ends[other] in (group.numbers[index], -1)
        and group.sending[index] != group.sending[other]
    )
