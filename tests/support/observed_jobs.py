"""Jobs told by hand: what agents would see of ranks in a given trouble, second by second."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import pytest

from tensorwire.diagnosis.analyzer import Analyzer
from tensorwire.diagnosis.model import (
    Edge,
    Finding,
    Observation,
    Operation,
    Process,
    ProcessGroup,
    Rank,
    Thresholds,
    Timing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tensorwire.diagnosis.analyzer import Analysis

SECONDS = Thresholds(hang_seconds=5.0, slow_seconds=6.0, lost_seconds=2.0)
WORLD = 4

every_rank = pytest.mark.parametrize("culprit", range(WORLD))
"""For what has to be found wherever the culprit is."""


def member(
    entered: int,
    *,
    waits: float | None = None,
    idle: float = 0.1,
    group: str = "world",
    size: int = WORLD,
    name: str = "all_reduce",
    dtype: str = "float32",
    numel: int = 1024,
    root: int = -1,
    known: bool = True,
    **more: Any,
) -> ProcessGroup:
    """A rank that has entered so many operations of a group, and waits in the last one for so long, or is idle."""
    signature = zlib.crc32(repr((name, dtype, numel, root)).encode()) if known else 0
    operation = Operation(entered, name, dtype, numel, root, signature) if known else None
    return ProcessGroup(
        id=group,
        name=group,
        size=size,
        enqueued=entered,
        completed=entered - (waits is not None),
        open_seconds=waits,
        idle_seconds=idle if waits is None else waits,
        operation=operation,
        **more,
    )


def rank(number: int, *groups: ProcessGroup, generation: int = 0, world: int = WORLD, **more: Any) -> Rank:
    of_process = {key: more.pop(key) for key in list(more) if key in Process.__dataclass_fields__}
    life = "stopped" if of_process.get("state") == "T" else "running"
    process = Process(**{"life": life, "state": "S", **of_process})
    return Rank(number, world, f"node{number // 4}", 100 + number, generation, process, list(groups), **more)


def dead(gone: float, exit_reason: str = "") -> dict[str, Any]:
    """Of a rank: it was seen last so many seconds ago, and said this when it ended."""
    return {"life": "exited" if exit_reason else "lost", "exit_reason": exit_reason, "gone_seconds": gone, "state": "?"}


def observed(time: float, ranks: Iterable[Rank], edges: Iterable[Edge] = (), **more: Any) -> Observation:
    known = {one.rank: one for one in ranks}
    return Observation(time, "run", more.pop("world", WORLD), known, list(edges), **more)


def edge(number: int, peer: int, **more: Any) -> Edge:
    fields = dict.fromkeys(
        ("acked_bytes", "received_bytes", "receive_queue", "send_queue", "backoff", "retransmits"), 0
    )
    return Edge(number, peer, **{**fields, "busy_seconds": 0.0, "rtt_seconds": 1e-4, **more})


def ring(world: int = WORLD, **of: Callable[[int, int], Any]) -> list[Edge]:
    """One edge from each rank to the next and back; each field as a function of both ends."""
    pairs = [(a, (a + 1) % world) for a in range(world)]
    pairs += [(b, a) for a, b in pairs]
    return [edge(a, b, **{field: value(a, b) for field, value in of.items()}) for a, b in pairs]


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


def all_in(entered: int = 31, **more: Any) -> Callable[[int, float], list[ProcessGroup]]:
    return lambda number, age: [member(entered, waits=age, **more)]


def job_at_rate(
    late: dict[int, float] | None = None,
    transfer: float = 0.0,
    *,
    after: float = 20.0,
    rate: float = 10.0,
    normal: float = 0.02,
    timed_after: float | None = None,
    group: str = "world",
    size: int = WORLD,
    edges: Callable[[float], list[Edge]] | None = None,
    states: Callable[[int, float], dict[str, Any]] | None = None,
    rooted: bool = False,
    scale: float = 1.0,
    name: str = "all_reduce",
) -> Callable[[float], Observation]:
    """A job of so many operations a second; later, ranks come late by so many seconds and transfers take longer.

    T is known from `timed_after` on. `scale` stretches the throughput of all ranks alike, outside of operations.
    """
    late = late or {}
    worst = max(late.values(), default=0.0)

    def at(time: float) -> Observation:
        period = 1.0 / rate
        slow_period = period * scale + worst + transfer
        done = int(min(time, after) / period + max(0.0, time - after) / slow_period) + 1
        ranks = []
        for n in range(size):
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
            ranks.append(rank(n, member(done, group=group, size=size, name=name, timing=timing), world=size, **extra))
        return observed(time, ranks, edges(time) if edges else [], world=size)

    return at


def watch(
    at: Callable[[float], Observation], until: float, *, step: float = 1.0, thresholds: Thresholds = SECONDS
) -> Iterator[tuple[float, Analysis]]:
    analyzer = Analyzer(thresholds)
    time = 0.0
    while time <= until:
        yield time, analyzer.update(at(time))
        time += step


def last(at: Callable[[float], Observation], until: float = 12.0, **more: Any) -> list[Finding]:
    return [analysis for _, analysis in watch(at, until, **more)][-1].findings


def everything(at: Callable[[float], Observation], until: float, **more: Any) -> list[Finding]:
    """All findings of all times."""
    return [finding for _, analysis in watch(at, until, **more) for finding in analysis.findings]


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, [finding.summary for finding in findings]
    return findings[0]
