"""Observations made by hand: of a rank only what a test is about is said, the rest is as in a job that is well."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

from tensorwire_job.model import Edge, Observation, Operation, Process, ProcessGroup, Rank

WORLD = 4


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
    agreed = (dtype, numel) if name in ("send", "recv") else (name, dtype, numel, root)
    signature = zlib.crc32(repr(agreed).encode()) if known else 0
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


def rank(
    number: int, *groups: ProcessGroup, generation: int = 0, world: int = WORLD, node: str = "", **more: Any
) -> Rank:
    """Any field of the rank or of its process may be given."""
    of_process = {key: more.pop(key) for key in list(more) if key in Process.__dataclass_fields__}
    life = "stopped" if of_process.get("state") == "T" else "running"
    process = Process(**{"life": life, "state": "S", **of_process})
    return Rank(number, world, node or f"node{number // 4}", 100 + number, generation, process, list(groups), **more)


def dead(gone: float, exit_reason: str = "") -> dict[str, Any]:
    """A rank that was seen last so many seconds ago, and said this when it ended."""
    return {"life": "exited" if exit_reason else "lost", "exit_reason": exit_reason, "gone_seconds": gone, "state": "?"}


def set_process(one: Rank, state: dict[str, Any]) -> None:
    """Fields of the process of a rank that has been seen already."""
    for name, value in state.items():
        setattr(one.process, name, value)


def observed(
    time: float,
    ranks: Iterable[Rank],
    edges: Iterable[Edge] = (),
    *,
    run_id: str = "run",
    world: int = WORLD,
    silent_nodes: Iterable[str] = (),
) -> Observation:
    return Observation(time, run_id, world, {one.rank: one for one in ranks}, list(edges), list(silent_nodes))


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
