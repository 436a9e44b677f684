"""The theory of a standstill: who waits for whom, which ranks explain it, and where their histories part. Nothing here
knows what a rank, a page or a process is. job/docs/method.md is the same in words.

The wait-for graph has AND and OR vertices: a need is met by all of its vertices, or by any of them. The vertices that
explain a standstill: were one of them replaced by one that does all that the others need, none would stand still.

A vertex that waits for nothing stands still for a reason of its own, unless it is done: nothing else explains it. An
explanation of the rest is on every circle of the graph, and at the end of every path that leads out of the circles. So
one circle, or one such path, has all vertices that may be one, and each of these is tried. A vertex that does not
explain it leaves another circle, which leaves fewer.

Ranks of a job run one program, so that what the members of a group call as the operation of one number is alike; the
first number at which it is not tells more than the last call.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

_MOST = 64  # vertices that are tried; a circle of more names none: all are as likely
_LATE, _BY_FAR = 6, 3  # calls

Vertex = int
"""A rank, or anything else that others may wait for, which waits for nothing itself."""


@dataclass(frozen=True, eq=False, slots=True)
class Need:
    """A need of some vertices. One need may be that of many, so that a graph is as small as the job."""

    of: Collection[Vertex]
    is_any: bool = False  # one of these is enough


class Graph:
    """Vertices that wait, each for its needs.

    Args:
        needs: of each vertex that waits. It goes on once every one of its needs is met.
        free: vertices that may do all that others need: nothing is known of them.
        done: vertices that wait for nothing, and have nothing more to do.
    """

    def __init__(
        self, needs: Mapping[Vertex, Collection[Need]], free: Iterable[Vertex] = (), done: Iterable[Vertex] = ()
    ) -> None:
        self.needs = {vertex: tuple(found) for vertex, found in needs.items() if found}
        self._all = list({id(need): need for found in self.needs.values() for need in found}.values())
        place = {id(need): index for index, need in enumerate(self._all)}
        self._waiters: list[list[Vertex]] = [[] for _ in self._all]
        self._needed: dict[Vertex, list[int]] = defaultdict(list)
        for vertex, found in self.needs.items():
            for need in found:
                self._waiters[place[id(need)]].append(vertex)
        for index, need in enumerate(self._all):
            for vertex in set(need.of):
                self._needed[vertex].append(index)
        self._free = frozenset(free)
        waiting = self.needs.keys() - self.released(())
        needs_in_vain = (n for n, by in zip(self._all, self._waiters, strict=True) if not waiting.isdisjoint(by))
        self.sinks = {other for need in needs_in_vain for other in need.of}
        """Vertices that are waited for in vain, and wait for nothing themselves."""
        self.sinks -= self.needs.keys() | self._free
        self.stuck = waiting | (self.sinks - frozenset(done))
        """The vertices that stand still for ever if nothing changes, for any reason."""

    def released(self, replaced: Iterable[Vertex]) -> set[Vertex]:
        """All that go on if these vertices did all that others need: these, and all that wait for none but such."""
        found = {*replaced, *self._free}
        left = [1 if need.is_any else len(set(need.of)) for need in self._all]
        unmet = {vertex: len(needs) for vertex, needs in self.needs.items()}
        queue = list(found)
        while queue:
            for index in self._needed.get(queue.pop(), ()):
                left[index] -= 1
                if left[index] != 0:
                    continue
                for waiter in self._waiters[index]:
                    unmet[waiter] -= 1
                    if unmet[waiter] == 0 and waiter not in found:
                        found.add(waiter)
                        queue.append(waiter)
        return found

    def blocking(self, vertex: Vertex, gone_on: Collection[Vertex]) -> tuple[Collection[Vertex], bool]:
        """What keeps a stuck vertex while these have gone on: vertices of its first unmet need, and whether one of them
        is enough."""
        for need in self.needs.get(vertex, ()):
            unmet = [other for other in need.of if other not in gone_on]
            if unmet and (not need.is_any or len(unmet) == len(need.of)):
                return unmet, need.is_any
        return (), False

    def components(self) -> list[set[Vertex]]:
        """The stuck vertices and what they wait for, in parts that have nothing to do with each other, which begin with
        the least."""
        within = self.stuck | self.sinks
        touching: dict[Vertex, list[set[Vertex]]] = defaultdict(list)
        for need, waiters in zip(self._all, self._waiters, strict=True):
            vertices = within.intersection((*waiters, *need.of))
            for vertex in vertices:
                touching[vertex].append(vertices)
        parts = []
        for start in sorted(touching):
            part, queue = set[Vertex](), [start]
            for vertex in queue:
                for vertices in touching.pop(vertex, ()):
                    queue += vertices
                    part |= vertices
                    vertices.clear()  # all others in it are in the queue: once is enough
            if part:
                parts.append(part)
        return parts


@dataclass(frozen=True, slots=True)
class Explanation:
    """What explains the standstill of a graph.

    Attributes:
        single: vertices each of which alone explains it.
        together: where none does: the vertices that wait for nothing, if they explain it together.
        partly: where that does not either: the same vertices, which explain a part.
        circle: vertices that wait for each other, the last one for the first, where all may explain it.
    """

    single: tuple[Vertex, ...] = ()
    together: tuple[Vertex, ...] = ()
    partly: tuple[Vertex, ...] = ()
    circle: tuple[Vertex, ...] = ()


def explain(graph: Graph, stuck: set[Vertex] | None = None) -> Explanation:
    """The explanation of what is stuck, or of a component of it."""
    stuck = graph.stuck if stuck is None else graph.stuck & stuck
    if not stuck:
        return Explanation()
    candidates, circle = _knot(graph, stuck, graph.released(()))
    tried = 0
    found: list[Vertex] = []
    waiting = sorted(candidates)
    while waiting and tried < _MOST:
        vertex = waiting.pop(0)
        tried += 1
        released = graph.released((vertex,))
        left = stuck - released
        if not left:
            found.append(vertex)
            continue
        others, _ = _knot(graph, left, released)
        waiting = [each for each in waiting if each in others]
        found = [each for each in found if each in others]
    if waiting:
        return Explanation(circle=tuple(circle))
    if found:
        return Explanation(single=tuple(sorted(found)), circle=tuple(circle))
    sinks = graph.sinks & stuck.union(*(need.of for waiter in stuck for need in graph.needs.get(waiter, ())))
    if sinks and not stuck - graph.released(sinks):
        return Explanation(together=tuple(sorted(sinks)))
    return Explanation(partly=tuple(sorted(sinks)), circle=tuple(circle))


def _knot(graph: Graph, stuck: set[Vertex], released: set[Vertex]) -> tuple[set[Vertex], list[Vertex]]:
    """All that may explain the standstill, by one way through it; and the circle that it ends in, if in one.

    A way leads from a vertex to one that it cannot do without. Where any of several would do, all may explain it.
    """
    at = min(stuck)
    way: list[Vertex] = []
    seen: dict[Vertex, int] = {}
    while at not in seen:
        seen[at] = len(way)
        way.append(at)
        blocking, is_any = graph.blocking(at, released)
        if not blocking:  # it waits for nothing
            return {at}, []
        if is_any and len(blocking) > 1:
            return {*stuck, *graph.sinks}, []
        done = [vertex for vertex in blocking if vertex not in stuck]
        if done:  # nothing releases that one but itself, nor the one that waits for it
            return ({done[0], at} if len(done) == 1 else {at}), []
        back = [vertex for vertex in blocking if vertex in seen]
        at = max(back, key=seen.__getitem__) if back else min(blocking)
    circle = way[seen[at] :]
    return set(circle), circle


class Entry(NamedTuple):
    """A call of one rank."""

    group: Hashable
    number: int
    what: Hashable  # has to be the same for all that make this call; None: not known
    kind: Hashable = None  # groups of one kind make the same calls at the same numbers; None: there are no others
    own: Hashable = None  # has to be the same in the group, though not in its kind; None: not known, or there is none


@dataclass(frozen=True, slots=True)
class Difference:
    """The first number of a group at which its members made different calls."""

    group: Hashable
    number: int
    sides: tuple[tuple[int, ...], ...]  # the members, the most on one side first
    accused: tuple[int, ...]  # whom most of those that made this call speak against; () where no side has most
    is_by_line: bool = False  # instead, the lines that the accused called from speak against them


def first_differences(histories: Mapping[int, Sequence[Entry]]) -> list[Difference]:
    """The differences that no other one comes before, in the history of a rank that has part in both.

    Args:
        histories: of each rank, in the order of its calls.
    """
    calls: dict[tuple[Hashable, int, bool], dict[int, Hashable]] = defaultdict(dict)
    others: dict[tuple[Hashable, int], Counter[Hashable]] = defaultdict(Counter)
    kinds: dict[Hashable, Hashable] = {}
    for rank, history in histories.items():
        for entry in history:
            if entry.what is not None:
                calls[entry.group, entry.number, False][rank] = entry.what
                others[entry.kind, entry.number][entry.what] += 1
                kinds[entry.group] = entry.kind
            if entry.own is not None:
                calls[entry.group, entry.number, True][rank] = entry.own
    differing = sorted((key for key, made in calls.items() if len(set(made.values())) > 1), key=lambda key: key[1:])
    first: dict[Hashable, tuple[int, bool]] = {}
    for group, number, is_own in differing:
        first.setdefault(group, (number, is_own))
    found = []
    for group in _earliest(histories, {group: number for group, (number, _) in first.items()}):
        number, is_own = first[group]
        made = calls[group, number, is_own]
        has_kind = kinds.get(group) and not is_own
        votes = others[kinds[group], number] if has_kind else Counter(made.values())
        found.append(_difference(group, number, made, votes))
    return found


def unequal_exchanges(
    group: Hashable, number: int, members: Sequence[int], counts: Mapping[int, Sequence[int]]
) -> Difference | None:
    """The difference between what members of a group give each other and what these expect; None where there is none.

    One pair cannot tell who of the two is wrong. A member that differs with several others is.

    Args:
        counts: of members whose call is known: what each gives to every member, then what it takes from every one.
    """
    size = len(members)
    pairs = [
        (giver, taker)
        for i, giver in enumerate(members)
        for j, taker in enumerate(members)
        if i != j and giver in counts and taker in counts and counts[giver][j] != counts[taker][size + i]
    ]
    if not pairs:
        return None
    parts = Counter(rank for pair in pairs for rank in set(pair))
    worst, *others = parts.most_common()
    accused = (worst[0],) if worst[1] == len(pairs) > 1 and all(other[1] < worst[1] for other in others) else ()
    return Difference(group, number, tuple((rank,) for rank in sorted(parts)), accused)


def _difference(group: Hashable, number: int, calls: Mapping[int, Hashable], votes: Counter[Hashable]) -> Difference:
    sides: dict[Hashable, list[int]] = defaultdict(list)
    for rank, what in calls.items():
        sides[what].append(rank)
    ordered = sorted((tuple(sorted(side)) for side in sides.values()), key=lambda side: (-len(side), side))
    (usual, most), *_ = votes.most_common(1)
    # None of two is most; nor is one that stands alone.
    has_most = 2 * most > votes.total() and most > 1 and usual in sides
    accused = tuple(sorted(rank for rank, what in calls.items() if what != usual)) if has_most else ()
    return Difference(group, number, tuple(ordered), accused)


def _earliest(histories: Mapping[int, Sequence[Entry]], first: Mapping[Hashable, int]) -> list[Hashable]:
    later: set[Hashable] = set()
    for history in histories.values():
        reached = [entry.group for entry in history if first.get(entry.group) == entry.number]
        later.update(reached[1:])
    return sorted(first.keys() - later, key=str) or sorted(first, key=str)


def last_stray(histories: Mapping[int, Sequence[Hashable]]) -> list[int]:
    """The rank that of late followed a call by one that no rank ever made after it, though it had made that one before:
    a loop makes the same calls again and again. Where several did, the last of them, if it was the last by far.

    Args:
        histories: what each rank called, in order.
    """
    times = Counter(pair for calls in histories.values() for pair in pairwise(calls))
    (since, last), *others = sorted((_calls_since_stray(calls, times), rank) for rank, calls in histories.items())
    return [last] if since < _LATE and all(other - since >= _BY_FAR for other, _ in others) else []


def _calls_since_stray(calls: Sequence[Hashable], times: Mapping[tuple[Hashable, Hashable], int]) -> float:
    since, known = math.inf, set[Hashable]()
    for index, (before, call) in enumerate(pairwise(calls), 2):
        if before in known and times[before, call] == 1:
            since = len(calls) - index
        if call != before:  # only then it is known what follows
            known.add(before)
    return since
