"""The vertices that explain a standstill: were one of them replaced by one that does all that the others need, none
would stand still.

A vertex that waits for nothing stands still for a reason of its own, unless it is done: nothing else explains it. An
explanation of the rest is on every circle of the graph, and at the end of every path that leads out of the circles. So
one circle, or one such path, has all vertices that may be one, and each of these is tried. A vertex that does not
explain it leaves another circle, which leaves fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .graph import Graph, Vertex

_MOST = 64  # vertices that are tried; a circle of more names none: all are as likely


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
