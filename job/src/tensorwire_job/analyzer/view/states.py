"""The table of states: what each rank waits in at one moment, and whom that lacks; and the graph that this makes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...model import FOR_ANY, FOR_KEY, FOR_LOCK, SETUPS, UNCOUNTED, CircleRank, holder_of_lock
from ..graph import Graph, Need
from .exit_reasons import LEFT
from .job import LONG
from .waits import IN_INIT, Wait, sides

if TYPE_CHECKING:
    from .groups import Group
    from .job import Job

_BEFORE_INIT, _IN_INIT = SETUPS.index("before init"), SETUPS.index("in init")
_ROOTED = ("broadcast", "scatter", "gather")  # the root alone waits for all
_FRESH_SECONDS = 1.0  # counts that are no older are those of now
_MAX_LINKS = 32
_UNSEEN = -1  # the vertex of all ranks that are not in view
_ENOUGH = 2  # vertices that stand for all that are alike: where one of them is replaced, another still stands still


class States:
    """The states of all ranks.

    Attributes:
        waits: what ranks wait in, the most prominent first.
        of: the waits of each rank that stands still.
        stuck: the ranks that stand still in each wait.
        moving: ranks that complete operations: they are in no wait that a standstill is made of.
        by_vertex: the wait of each vertex that is no rank.
        graph: ranks that wait for the same, and for which none waits, are alike. A few of them stand for all.
    """

    def __init__(self, job: Job, goes_on: Callable[[Wait], bool] = lambda _: False) -> None:
        self.job = job
        self._least = job.blocked_seconds
        self._pairs: dict[tuple[str, int, int], Wait] = {}
        self._leading_to: dict[tuple[int, ...], list[Wait]] = {}
        # No rank waits in those that have run their script to its end, and their counts are not read any more.
        at_the_end = [n for n in job.columns.exit_reasons if job.ranks[n].process.exit_kind == "end"]
        self._are_live = job.columns.places.are_alive & ~np.isin(job.columns.numbers, at_the_end)
        self.waits: list[Wait] = []
        for group in job.groups.having(job.columns.rows.open_seconds >= self._least):
            self._add(group)
        self.moving = self._moving()
        self.waits += self._calls()
        for wait in self.waits:
            wait.is_fresh = not job.are_stale(wait.inside)
        self.waits.sort(key=lambda wait: (wait.prominence, -wait.inside[0]), reverse=True)
        for index, wait in enumerate(self.waits):
            wait.vertex = -2 - index
        self.by_vertex = {wait.vertex: wait for wait in self.waits}
        self.of: dict[int, tuple[Wait, ...]] = defaultdict(tuple)
        self._in_several = set[int]()
        self.stuck: dict[Wait, set[int]] = {}
        for wait in self.waits:
            stuck = set(wait.blocked) if self.is_overdue(wait) else set(wait.blocked) - self.moving
            again = self.of.keys() & stuck
            self.of |= dict.fromkeys(stuck, (wait,)) | {number: (*self.of[number], wait) for number in again}
            self._in_several |= again
            self.stuck[wait] = stuck
        passing = (w.vertex for w in self.waits if not w.missing and not w.sides and goes_on(w))
        left = [number for number, reason in job.columns.exit_reasons.items() if reason in LEFT]  # well: they are done
        done = [number for number in left if not job.ranks[number].process.is_alive]
        self.graph = Graph(self._needs(), {_UNSEEN, *passing}, done)

    def links(self, circle: Sequence[int]) -> list[CircleRank]:
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
        return [CircleRank(number, wait.title) for number, wait in found if wait is not None]

    def leading_to(self, vertices: Iterable[int]) -> list[Wait]:
        """The waits that lack one of these, directly or through others, the nearest first."""
        of = tuple(vertices)
        if of in self._leading_to:
            return self._leading_to[of]
        found: dict[Wait, None] = {}
        queue, seen = list(of), set(of)
        for vertex in queue:
            for wait in self._lacking.get(vertex, ()):
                if wait not in found:
                    found[wait] = None
                    new = (self._lacking.keys() & wait.blocked) - seen
                    queue += sorted(new)
                    seen |= new
        return self._leading_to.setdefault(of, list(found))

    def victims(self, vertices: Iterable[int]) -> set[int]:
        """Ranks that wait for these, directly or through others."""
        return set[int]().union(*(wait.blocked for wait in self.leading_to(vertices))) - set(vertices)

    @cached_property
    def _lacking(self) -> dict[int, list[Wait]]:
        found: dict[int, list[Wait]] = defaultdict(list)
        for wait in self.waits:
            for vertex in wait.lacked:
                found[vertex].append(wait)
        return found

    def _moving(self) -> set[int]:
        """Ranks that have completed an operation of late, of a group that no rank waits in."""
        rows, columns = self.job.columns.rows, self.job.columns
        waited_in = np.zeros(rows.groups.max(initial=-1) + 1, dtype=np.bool_)
        waited_in[rows.groups[rows.open_seconds >= self._least]] = True
        are_moving = rows.idle_seconds < self.job.recent_seconds
        are_moving &= ~waited_in[rows.groups] & columns.places.are_alive[rows.places]
        return set(columns.row_numbers[are_moving].tolist())

    def is_overdue(self, wait: Wait) -> bool:
        """Whether it is longer than may be meant by ranks that go on elsewhere."""
        return wait.seconds >= LONG * self.job.thresholds.hang_seconds or (
            wait.group is not None and self.job.is_unusual(wait.group, wait.seconds)
        )

    def _needs(self) -> dict[int, tuple[Need, ...]]:
        """The needs of the ranks that stand for all."""
        needs = [(wait, *part) for wait in self.waits for part in self._needs_in(wait)]
        waited_for = set[int]().union(*(need.of for _, need, _ in needs))
        singular = waited_for | self._in_several
        found: dict[int, tuple[Need, ...]] = defaultdict(tuple)
        for wait, need, ranks in needs:
            stuck = self.stuck[wait].intersection(ranks)
            apart = stuck & singular
            for number in (*apart, *sorted(stuck - apart)[:_ENOUGH]):
                found[number] += (need,)
        alike = Counter[tuple[Need, ...]]()
        for number in sorted(found.keys() - waited_for):
            alike[found[number]] += 1
            if alike[found[number]] > _ENOUGH:
                del found[number]
        return found

    def _needs_in(self, wait: Wait) -> list[tuple[Need, Collection[int]]]:
        """The needs in it, each with the ranks that have it."""
        lacked = [*wait.missing, *(number for side in wait.sides for number in side)]
        may_move = wait.is_any and not self.moving.isdisjoint(wait.missing)  # a rank that goes on may be the one
        if not wait.sides and (wait.unseen or not wait.is_complete or may_move):
            lacked.append(_UNSEEN)
        needs: list[tuple[Need, Collection[int]]] = [(Need(wait.lacked_by(side[0])), side) for side in wait.sides]
        for operation, ranks in wait.calls if wait.missing and not wait.sides and not wait.is_pairwise else ():
            if operation.name in _ROOTED and operation.root >= 0:  # none waits for more than a root that has not come
                root = self.job.groups.ranks_of(wait.of_group)[operation.root : operation.root + 1]
                if root and root[0] in wait.missing:
                    needs.append((Need(root), ranks))
        others = set(wait.blocked).difference(*(ranks for _, ranks in needs))
        return [*needs, (Need(lacked or [wait.vertex], is_any=wait.is_any), others)] if others else needs

    def _add(self, group: Group) -> None:
        # In counts that stand still an operation looks open for ever: what they say is how old it was then.
        least, fresh = self._least, group.heartbeat_seconds < _FRESH_SECONDS
        alive = self._are_live[group.places]
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
        wait.sides = sides(wait.calls)
        self.waits.append(wait)

    def _add_pair(self, group: Group, index: int) -> None:
        number, peer = int(group.numbers[index]), int(group.ends[index])
        sequence, age = int(group.open_sequence[index]), float(group.open_seconds[index])
        other = group.members.get(peer)
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
        """Waits that no process group counts. Stacks tell of them, and set-ups. A file lock is held by one other rank,
        or by a process that is no rank."""
        job, numbers, (setups, ages) = self.job, self.job.columns.numbers, self.job.columns.setups
        at: dict[str, dict[int, float]] = defaultdict(dict)
        locks: dict[tuple[str, int, tuple[int, ...]], dict[int, float]] = defaultdict(dict)
        for number, (activity, seconds) in job.columns.activities.items():
            age = self._least if seconds is None else seconds
            if not self._are_live[job.columns.place_of[number]]:
                continue
            if activity in UNCOUNTED:
                at[activity][number] = age
            elif pid := holder_of_lock(activity):
                holders = job.holders(number)
                if len(holders) < 2 and holders != [number]:
                    locks[job.ranks[number].node, pid, tuple(holders)][number] = age
        in_init = (setups == _IN_INIT) & self._are_live
        if in_init.any():
            at[IN_INIT] = dict(zip(numbers[in_init].tolist(), np.nan_to_num(ages[in_init]).tolist(), strict=True))
        unseen = job.out_of_view if at or locks else []
        found = [
            Wait(None, FOR_LOCK, 0, old, old, [*holders], [] if holders else unseen, max(since.values()), pid=pid)
            for (_, pid, holders), since in locks.items()
            if (old := sorted(number for number, age in since.items() if age >= self._least))
        ]
        for call, since in sorted(at.items()):
            inside = sorted(number for number, seconds in since.items() if seconds >= self._least)
            if not inside:
                continue
            missing = [number for number in job.ranks if number not in since]
            if call == IN_INIT:
                missing = numbers[setups == _BEFORE_INIT].tolist()
            is_any = call in (FOR_ANY, FOR_KEY)
            if is_any and not missing:
                missing = unseen = unseen or [_UNSEEN]
            found.append(Wait(None, call, 0, inside, inside, missing, unseen, max(since.values()), is_any=is_any))
        return found


def waits_elsewhere(job: Job) -> bool:
    """Whether a rank may be in what no process group counts."""
    return bool(job.columns.activities) or bool((job.columns.setups[0] == _IN_INIT).any())


def _match(group: Group, index: int, other: int) -> bool:
    """Whether the other member is in the other half of this one's send or receive."""
    return bool(
        not np.isnan(group.open_seconds[other])
        and group.pairwise[other]
        and group.ends[other] in (group.numbers[index], -1)
        and group.sending[index] != group.sending[other]
    )
