"""Jobs made by hand: what agents would see of ranks in a given trouble, second by second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from job.tests.support.observations import WORLD, member, observed, rank
from tensorwire_job.model import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tensorwire_job.model import Edge, Observation, ProcessGroup

_BETWEEN = [pytest.param(culprit, marks=pytest.mark.slow) for culprit in range(1, WORLD - 1)]
every_rank = pytest.mark.parametrize("culprit", [0, *_BETWEEN, WORLD - 1])
"""For what has to be found wherever the culprit is: the first rank and the last one, and slowly those between."""


def healthy(time: float, *, rate: float = 10.0, world: int = WORLD, **more: Any) -> Observation:
    return observed(
        time, [rank(n, member(int(rate * time) + 1, size=world), world=world) for n in range(world)], **more
    )


def hung(
    groups: Callable[[int, float], list[ProcessGroup]],
    *,
    after: float = 3.0,
    edges: Callable[[float], list[Edge]] | None = None,
    states: dict[int, dict[str, Any]] | None = None,
    world: int = WORLD,
) -> Callable[[float], Observation]:
    """Healthy until then; from there on each rank is in what `groups` says of it and of the time it has been so."""

    def at(time: float) -> Observation:
        some = edges(time) if edges else []
        if time < after:
            return healthy(time, world=world, edges=some)
        ranks = [rank(n, *groups(n, time - after), world=world, **((states or {}).get(n, {}))) for n in range(world)]
        return observed(time, ranks, some, world=world)

    return at


def not_entering(culprit: int) -> Callable[[int, float], list[ProcessGroup]]:
    """One rank does not come to the operation that the others wait in."""
    return some_reduce(others(culprit))


def some_reduce(inside: Collection[int]) -> Callable[[int, float], list[ProcessGroup]]:
    """These wait in an operation that no other rank has come to."""
    return lambda number, age: [member(31, waits=age) if number in inside else member(30, idle=age)]


def others(number: int) -> list[int]:
    return [other for other in range(WORLD) if other != number]


def in_call(
    activity: str, inside: Collection[int], groups: Callable[[int, float], list[ProcessGroup]], **more: Any
) -> Callable[[float], Observation]:
    """From three seconds on, the main threads of these ranks are in a call that no group counts."""
    seen_at = hung(groups, **more)

    def at(time: float) -> Observation:
        seen = seen_at(time)
        for number in inside if time > 3.0 else ():
            seen.ranks[number].activity, seen.ranks[number].activity_seconds = activity, time - 3.0
        return seen

    return at


def all_in(**more: Any) -> Callable[[int, float], list[ProcessGroup]]:
    return lambda number, age: [member(31, waits=age, **more)]


def job_at_rate(
    late: dict[int, float] | None = None,
    transfer: float = 0.0,
    *,
    after: float = 20.0,
    timed_after: float | None = None,
    edges: Callable[[float], list[Edge]] | None = None,
    states: Callable[[int, float], dict[str, Any]] | None = None,
    rooted: bool = False,
    scale: float = 1.0,
    name: str = "all_reduce",
) -> Callable[[float], Observation]:
    """A job of ten operations a second; later, ranks come late by so many seconds and transfers take longer.

    T is known from `timed_after` on. `scale` stretches the throughput of all ranks alike, outside of operations.
    """
    late = late or {}
    worst = max(late.values(), default=0.0)

    def at(time: float) -> Observation:
        period, normal = 0.1, 0.02
        slow_period = period * scale + worst + transfer
        done = int(min(time, after) / period + max(0.0, time - after) / slow_period) + 1
        ranks = []
        for n in range(WORLD):
            timing = None
            if timed_after is not None and time > timed_after:
                good = max(0, min(done, int(after / period)) - int(min(timed_after, after) / period))
                first = int(min(timed_after, after) / period + max(0.0, timed_after - after) / slow_period)
                bad = max(0, done - first - good)
                slow_t = normal + transfer + worst - late.get(n, 0.0)
                if good + bad:
                    timing = Timing(
                        first + 1,
                        good + bad,
                        good * normal + bad * slow_t,
                        0.9 * (normal if good else slow_t),
                        1.1 * (slow_t if bad else normal),
                        1 << 20,
                        good + bad if rooted else 0,
                    )
            extra = states(n, time) if states else {}
            ranks.append(rank(n, member(done, name=name, timing=timing), **extra))
        return observed(time, ranks, edges(time) if edges else [])

    return at
