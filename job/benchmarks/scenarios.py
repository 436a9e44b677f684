"""What happens to simulated jobs: faults of every class, and everything that is no fault though it looks like one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from job.benchmarks.layout import RANKS_PER_NODE
from tensorwire_job.model import Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from job.benchmarks.simulated_job import SimulatedJob

Event = tuple[float, "Callable[[SimulatedJob], None]"]

HANGS = 340.0  # seconds from a fault to the end of its run: the hang gate and some more
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


def _both(*steps: Callable[[SimulatedJob], None]) -> Callable[[SimulatedJob], None]:
    def do(job: SimulatedJob) -> None:
        for step in steps:
            step(job)

    return do


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


def faults(job: SimulatedJob, rank: int) -> list[Scenario]:
    """All faults at this rank."""
    me = frozenset({rank})
    size = job.layout.world_size
    kind = "dp" if "dp" in job.layout.groups else "world"
    group = job.layout.groups[kind][job.layout.group_of[kind][rank]]
    half = set(group[: len(group) // 2].tolist())
    other = (rank + size // 2) % size
    stalled = _condition(stalled=kind, stalled_at=rank)
    found = [
        Scenario("process killed", "TW-LOST", me, ((0.0, lambda job: _kill(job, rank)),), 60.0),
        Scenario("rank sleeps", "TW-H1", me, ((0.0, _absent(rank)),), HANGS),
        Scenario("stopped outside", "TW-H1", me, ((0.0, _both(_absent(rank), lambda j: _stop(j, rank))),), HANGS),
        Scenario("another operation", "TW-H2", me, ((0.0, _condition(other_call={rank})),), HANGS),
        Scenario("two halves disagree", "TW-H2", frozenset(), ((0.0, _condition(other_call=half)),), HANGS),
        Scenario("stopped inside", "TW-H3", me, ((0.0, _both(stalled, lambda j: _stop(j, rank))),), HANGS),
        Scenario("link down", "TW-H3", me, ((0.0, _both(stalled, _condition(broken_link=rank))),), HANGS),
        Scenario("data left unread", "TW-H3", me, ((0.0, _both(stalled, _condition(unread=rank))),), HANGS),
        Scenario("slow compute", "TW-S1", me, ((0.0, _compute(rank, 6.0 * job.layout.pp)),), SLOWS),
        Scenario(
            "CPU quota",
            "TW-S1",
            me,
            ((0.0, _both(_compute(rank, 4.0 * job.layout.pp), _link(rank, 8.0 * job.layout.pp),
                         _condition(throttled={rank: 0.8}))),),
            SLOWS,
        ),
        Scenario("slow link", "TW-S2", me, ((0.0, _link(rank, 12.0 * job.layout.pp)),), SLOWS),
        Scenario(
            "slow compute and slow link",
            "TW-S3",
            me,
            ((0.0, _both(_compute(rank, 5.0 * job.layout.pp), _link(rank, 12.0 * job.layout.pp))),),
            SLOWS,
        ),
        Scenario(
            "slow compute, slow link of another",
            "TW-S3",
            me | {other},
            ((0.0, _both(_compute(rank, 5.0 * job.layout.pp), _link(other, 12.0 * job.layout.pp))),),
            SLOWS,
        ),
    ]  # fmt: skip
    if "tp" in job.layout.groups:
        found.append(Scenario("groups in opposite order", "TW-H2", me, ((0.0, _condition(swapped={rank})),), HANGS))
    return found


def harmless(job: SimulatedJob, rank: int) -> list[Scenario]:
    """What is no fault."""
    everyone = list(range(job.layout.world_size))
    node = f"node{rank // RANKS_PER_NODE:04d}"
    none: frozenset[int] = frozenset()

    def compile_all(job: SimulatedJob) -> None:
        job.pause(everyone, 40.0)

    def restart(job: SimulatedJob) -> None:
        job.generation += 1
        job.conditions.absent.clear()
        job.conditions.processes.clear()
        job.restart(job.time)

    return [
        Scenario("nothing", "", none, (), SLOWS),
        Scenario("checkpoint on all ranks", "", none, ((0.0, lambda job: job.pause(everyone, 120.0)),), SLOWS),
        Scenario("evaluation on rank 0", "", none, ((0.0, lambda job: job.pause([0], 200.0)),), SLOWS),
        Scenario("one slow step", "", none, ((0.0, lambda job: job.pause([rank], 45.0)),), SLOWS),
        Scenario("compilation", "", none, ((-149.0, compile_all), (0.0, compile_all)), SLOWS),
        Scenario("uneven compute", "", none, ((-149.0, _compute(rank, 1.4)),), SLOWS),
        Scenario("longer sequences", "", none, ((0.0, lambda job: job.conditions.compute.__imul__(6.0)),), 2 * SLOWS),
        Scenario("link a little slow", "", none, ((0.0, _link(rank, 1.5)),), SLOWS),
        Scenario(
            "one huge transfer",
            "",
            none,
            (
                (0.0, _condition(transfer=3000.0, moving=1e8)),
                (5.0, _condition(transfer=1.0)),
            ),
            700.0,
        ),
        Scenario("elastic restart", "", none, ((0.0, lambda job: _kill(job, rank)), (8.0, restart)), SLOWS),
        Scenario("agent silent", "", none, (), SLOWS, silent=(node, 200.0)),
    ]


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
