"""What happens to simulated jobs: faults of every class, and everything that is no fault though it looks like one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from job.benchmarks.layout import RANKS_PER_NODE
from tensorwire_job.model import Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from job.benchmarks.simulated_job import SimulatedJob

Event = tuple[float, "Callable[[SimulatedJob], None]"]

HANGS = 340.0  # seconds from a fault to the end of its run: the hang gate and some more
NOBODY: frozenset[int] = frozenset()
SLOWS = 420.0  # a window of twelve rounds of the slowest of these jobs takes four minutes


@dataclass(frozen=True)
class Scenario:
    """What happens in one run.

    Attributes:
        code: of the finding that is due; "" for none.
        suspects: which it has to name first, or all of; empty: none.
        events: seconds after the fault's time, and what happens then.
        seconds: of the run after the fault's time.
        silent: the node whose agent is silent, and for how long.
    """

    name: str
    code: str
    suspects: frozenset[int]
    events: tuple[Event, ...]
    seconds: float
    silent: tuple[str, float] = ("", 0.0)


def _kill(job: SimulatedJob, rank: int) -> None:
    at = job.time
    job.conditions.absent.add(rank)
    process = Process("lost", "?", gone_seconds=0.0)
    job.conditions.processes[rank] = process
    job.on_poll.append(lambda now: setattr(process, "gone_seconds", now - at))


def _stop(job: SimulatedJob, rank: int) -> None:
    job.conditions.processes[rank] = Process("stopped", "T")


def _at_once(
    name: str, code: str, suspects: frozenset[int], seconds: float, *steps: Callable[[SimulatedJob], None]
) -> Scenario:
    return Scenario(name, code, suspects, tuple((0.0, step) for step in steps), seconds)


def _absent(rank: int) -> Callable[[SimulatedJob], None]:
    return lambda job: job.conditions.absent.add(rank)


def _condition(**values: object) -> Callable[[SimulatedJob], None]:
    def do(job: SimulatedJob) -> None:
        for name, value in values.items():
            setattr(job.conditions, name, value)

    return do


def _compute(rank: int, factor: float) -> Callable[[SimulatedJob], None]:
    return lambda job: job.conditions.compute.__setitem__(rank, factor)


def _link(rank: int, factor: float) -> Callable[[SimulatedJob], None]:
    return lambda job: job.conditions.link.__setitem__(rank, factor)


def _faults(job: SimulatedJob, rank: int) -> list[Scenario]:
    """All faults at this rank."""
    me = frozenset({rank})
    size = job.layout.world_size
    kind = "dp" if "dp" in job.layout.groups else "world"
    group = job.layout.groups[kind][job.layout.group_of[kind][rank]]
    half = set(group[: len(group) // 2].tolist())
    other = (rank + size // 2) % size
    stalled = _condition(stalled=kind, stalled_at=rank)
    slow, throttled = job.layout.pp, _condition(throttled={rank: 0.8})
    late, late_link = _compute(rank, 5.0 * slow), _link(rank, 12.0 * slow)
    swapped = [_at_once("groups in opposite order", "TW-H2", me, HANGS, _condition(swapped={rank}))]
    return [
        _at_once("process killed", "TW-LOST", me, 60.0, partial(_kill, rank=rank)),
        _at_once("rank sleeps", "TW-H1", me, HANGS, _absent(rank)),
        _at_once("stopped outside", "TW-H1", me, HANGS, _absent(rank), partial(_stop, rank=rank)),
        _at_once("another operation", "TW-H2", me, HANGS, _condition(other_call={rank})),
        _at_once("two halves disagree", "TW-H2", NOBODY, HANGS, _condition(other_call=half)),
        _at_once("stopped inside", "TW-H3", me, HANGS, stalled, partial(_stop, rank=rank)),
        _at_once("link down", "TW-H3", me, HANGS, stalled, _condition(broken_link=rank)),
        _at_once("data left unread", "TW-H3", me, HANGS, stalled, _condition(unread=rank)),
        _at_once("slow compute", "TW-S1", me, SLOWS, _compute(rank, 6.0 * slow)),
        _at_once("CPU quota", "TW-S1", me, SLOWS, _compute(rank, 4.0 * slow), _link(rank, 8.0 * slow), throttled),
        _at_once("slow link", "TW-S2", me, SLOWS, late_link),
        _at_once("slow compute and slow link", "TW-S3", me, SLOWS, late, late_link),
        _at_once("slow compute, slow link of another", "TW-S3", me | {other}, SLOWS, late, _link(other, 12.0 * slow)),
        *(swapped if "tp" in job.layout.groups else ()),
    ]


def _harmless(job: SimulatedJob, rank: int) -> list[Scenario]:
    """What is no fault."""
    everyone = list(range(job.layout.world_size))
    node = f"node{rank // RANKS_PER_NODE:04d}"

    def compile_all(job: SimulatedJob) -> None:
        job.pause(everyone, 40.0)

    def restart(job: SimulatedJob) -> None:
        job.generation += 1
        job.conditions.absent.clear()
        job.conditions.processes.clear()
        job.restart(job.time)

    def none(name: str, *events: Event, seconds: float = SLOWS, silent: tuple[str, float] = ("", 0.0)) -> Scenario:
        return Scenario(name, "", NOBODY, events, seconds, silent)

    return [
        none("nothing"),
        none("checkpoint on all ranks", (0.0, lambda job: job.pause(everyone, 120.0))),
        none("evaluation on rank 0", (0.0, lambda job: job.pause([0], 200.0))),
        none("one slow step", (0.0, lambda job: job.pause([rank], 45.0))),
        none("compilation", (-149.0, compile_all), (0.0, compile_all)),
        none("uneven compute", (-149.0, _compute(rank, 1.4))),
        none("longer sequences", (0.0, lambda job: job.conditions.compute.__imul__(6.0)), seconds=2 * SLOWS),
        none("link a little slow", (0.0, _link(rank, 1.5))),
        none(
            "one huge transfer",
            (0.0, _condition(transfer=3000.0, moving=1e8)),
            (5.0, _condition(transfer=1.0)),
            seconds=700.0,
        ),
        none("elastic restart", (0.0, lambda job: _kill(job, rank)), (8.0, restart)),
        none("agent silent", silent=(node, 200.0)),
    ]


def all_at(job: SimulatedJob, rank: int) -> dict[str, Scenario]:
    """By name: all faults at this rank, and what is no fault."""
    return {scenario.name: scenario for scenario in (*_faults(job, rank), *_harmless(job, rank))}


def is_right(scenario: Scenario, codes: list[str], suspects: list[list[int]]) -> tuple[bool, bool]:
    """Whether the first finding has the right class, and whether it names the right ranks as well."""
    if not scenario.code:
        return not codes, not codes
    if not codes or codes[0] != scenario.code:
        return False, False
    named = suspects[0]
    if len(scenario.suspects) == 1:
        return True, named[:1] == list(scenario.suspects)
    return True, set(named) == scenario.suspects


def random_rank(job: SimulatedJob, seed: int) -> int:
    return int(np.random.default_rng(seed).integers(job.layout.world_size))
