"""A simulated training job: what its ranks' probes and kernels would show, second by second.

A step is: receive activations, compute and all-reduce in the tensor-parallel group twice, all-reduce gradients in the
data-parallel group, then a small all-reduce of all ranks. Compute times are lognormal, transfers have jitter. An
operation completes at all members once the last has entered and the bytes are through; a rank that does not enter holds
up all that depend on it, and the clock of the rest runs on.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from job.benchmarks.layout import RANKS_PER_NODE
from tensorwire_job.model import Edge, Observation, Operation, Process, ProcessGroup, Rank, Timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from job.benchmarks.layout import Layout

NEVER = np.inf
_COMPUTE_SECONDS, _SIGMA = 0.25, 0.08  # of each of two parts of a step
_TRANSFER_SECONDS = {"tp": 0.01, "pp": 0.005, "dp": 0.12, "world": 0.004}  # a link's time for the bytes of a rank
_NAMES = {"tp": "all_reduce", "pp": "recv", "dp": "all_reduce", "world": "all_reduce"}
_NUMELS = {"tp": 1 << 22, "pp": 1 << 21, "dp": 1 << 26, "world": 1}
_JITTER = 0.05


@dataclass
class Conditions:
    """What is wrong at present, per rank; a scenario changes it as time goes on."""

    compute: np.ndarray  # factor of compute time
    link: np.ndarray  # factor of transfer time of what a rank sends
    absent: set[int] = field(default_factory=set)  # enters nothing more
    swapped: set[int] = field(default_factory=set)  # enters the all-reduce of all ranks before those of its group
    other_call: set[int] = field(default_factory=set)  # calls something else in the next operation of its dp group
    stalled: str = ""  # kind of group ...
    stalled_at: int = -1  # ... of this rank, whose next operation does not end
    processes: dict[int, Process] = field(default_factory=dict)
    throttled: dict[int, float] = field(default_factory=dict)  # share of the time
    broken_link: int = -1
    unread: int = -1
    transfer: float = 1.0  # factor for all
    moving: float = 0.0  # bytes per second on all edges, besides


@dataclass
class _Step:
    kind: str
    arrive: np.ndarray
    complete: np.ndarray
    call: np.ndarray  # 0: as usual, 1: something else


class _Counts:
    """What the pages of all ranks say of one kind of group."""

    def __init__(self, size: int) -> None:
        self.entered = np.zeros(size, dtype=np.int64)
        self.completed = np.zeros(size, dtype=np.int64)
        self.opened = np.full(size, np.nan)
        self.last = np.full(size, np.nan)
        self.call = np.zeros(size, dtype=np.int64)
        self.first = np.full(size, np.iinfo(np.int64).max)  # of the timed window; it moves on
        self.sum, self.low, self.high = np.zeros(size), np.full(size, np.inf), np.zeros(size)
        self.whole: dict[int, Timing] = {}


class SimulatedJob:
    """A job of a layout, and its conditions. All chance comes from the seed."""

    def __init__(self, layout: Layout, seed: int) -> None:
        self.layout = layout
        self.generation = 0
        self._random = np.random.default_rng(seed)
        size = layout.world_size
        self.conditions = Conditions(np.ones(size), np.ones(size))
        self.on_poll: list[Callable[[float], None]] = []
        self.restart(0.0)

    def restart(self, time: float) -> None:
        """All processes begin anew, as an elastic launcher has it."""
        size = self.layout.world_size
        self.time = self._began = time
        self._ready = time + self._random.exponential(0.05, size)
        self._pending: list[_Step] = []
        self._counts = {kind: _Counts(size) for kind in self.layout.groups}
        self._throttled = np.zeros(size)
        self._busy = np.zeros(len(self.layout.edges))
        self._acked = np.zeros(len(self.layout.edges))
        self._window = 0

    def pause(self, ranks: list[int], seconds: float) -> None:
        """Something else keeps these ranks for so long: a checkpoint, an evaluation, a compiler."""
        self._ready[ranks] += seconds

    def enable_timing(self, first: dict[str, int], num_rounds: int) -> None:
        """Time windows of rounds from these sequence numbers on; {}: nothing."""
        self._window = num_rounds
        for kind, rows in self.layout.groups.items():
            counts = self._counts[kind]
            counts.first[:] = np.iinfo(np.int64).max
            for row, members in enumerate(rows):
                sequence = first.get(self.identity(kind, row))
                if sequence is not None:
                    counts.first[members] = sequence

    def identity(self, kind: str, row: int) -> str:
        return f"{self.generation:04x}{'tpppdpworld'.index(kind):04x}{row:08x}"

    def advance(self, time: float) -> None:
        """Let the job run until then."""
        while np.min(self._ready) <= time:
            self._run_step()
        still = []
        for step in self._pending:
            self._settle(step, time)
            if np.any(step.complete > time):
                still.append(step)
        self._pending = still
        elapsed = time - self.time
        self._acked += self.conditions.moving * elapsed
        for rank, share in self.conditions.throttled.items():
            self._throttled[rank] += share * elapsed
        self.time = time
        for poll in self.on_poll:
            poll(time)

    def observe(self, *, with_edges: bool = True) -> dict[str, Observation]:
        """What the agent of each node sees now. A fabric other than TCP shows no edges."""
        edges = self._edges() if with_edges else {}
        rows = {kind: self._rows(kind) for kind in self.layout.groups}
        observations = {}
        for node in range(self.layout.num_nodes):
            numbers = range(node * RANKS_PER_NODE, min((node + 1) * RANKS_PER_NODE, self.layout.world_size))
            name = f"node{node:04d}"
            ranks = {number: self._rank(number, name, [of[number] for of in rows.values()]) for number in numbers}
            observations[name] = Observation(
                self.time, "simulated", self.layout.world_size, ranks, [e for n in numbers for e in edges.get(n, ())]
            )
        return observations

    def _run_step(self) -> None:
        """One more step of all ranks, as far as they come."""
        conditions = self.conditions
        if "pp" in self.layout.groups:
            self._receive()
        for _ in range(2):
            compute = self._random.lognormal(np.log(_COMPUTE_SECONDS), _SIGMA, self.layout.world_size)
            self._ready = self._ready + compute * conditions.compute
            for rank in conditions.absent:
                self._ready[rank] = NEVER
            early = {rank: self._ready[rank] for rank in conditions.swapped}
            for rank in early:
                self._ready[rank] = NEVER
            if "tp" in self.layout.groups:
                self._collective("tp")
            if early:
                break
        if "dp" in self.layout.groups:
            self._collective("dp")
        for rank, at in early.items():
            self._ready[rank] = at
        self._collective("world")

    def _receive(self) -> None:
        previous = self.layout.previous_stage
        receives = previous >= 0
        arrive = np.where(receives, self._ready, np.nan)
        complete = np.full_like(arrive, np.nan)
        cost = self._random.lognormal(np.log(_TRANSFER_SECONDS["pp"]), _JITTER, len(arrive))
        for stage in range(1, self.layout.pp):
            of_stage = (np.arange(len(arrive)) // self.layout.tp) % self.layout.pp == stage
            source = previous[of_stage]
            complete[of_stage] = np.maximum(self._ready[of_stage], self._ready[source] + cost[of_stage])
        self._ready = np.where(receives, complete, self._ready)
        self._pending.append(_Step("pp", arrive, complete, np.zeros(len(arrive), dtype=np.int64)))

    def _collective(self, kind: str) -> None:
        conditions, rows = self.conditions, self.layout.groups[kind]
        arrive = self._ready.copy()
        start = arrive[rows].max(axis=1)
        jitter = self._random.lognormal(0.0, _JITTER, len(rows))
        slowest = conditions.link[rows].max(axis=1) if kind != "tp" else 1.0  # within a node nothing leaves by a link
        cost = _TRANSFER_SECONDS[kind] * self.layout.hops(kind) * jitter * slowest * conditions.transfer
        end = start + cost
        call = np.zeros(len(arrive), dtype=np.int64)
        if kind == conditions.stalled:
            end[self.layout.group_of[kind][conditions.stalled_at]] = NEVER
        if kind == "dp" and conditions.other_call:
            call[list(conditions.other_call)] = 1
            end[self.layout.group_of[kind][next(iter(conditions.other_call))]] = NEVER
        complete = np.repeat(end, rows.shape[1])[np.argsort(rows.ravel(), kind="stable")]
        self._ready = complete.copy()
        self._pending.append(_Step(kind, arrive, complete, call))
        if kind == ("dp" if "dp" in self.layout.groups else "world"):
            self._load(cost, start)

    def _load(self, cost: np.ndarray, start: np.ndarray) -> None:
        """Edges are busy while the slowest of their group is; the slow one nearly all of the time."""
        edges = self.layout.edges
        group = self.layout.group_of["dp" if "dp" in self.layout.groups else "world"][edges[:, 0]]
        moving = np.isfinite(start[group])
        share = np.where(self.conditions.link[edges[:, 0]] > 1, 0.9, 0.3)
        self._busy += np.where(moving, share * cost[group], 0.0)
        self._acked += np.where(moving, 4.0 * _NUMELS["dp"], 0.0)

    def _settle(self, step: _Step, time: float) -> None:
        """Count what was entered and completed since the last poll."""
        counts = self._counts[step.kind]
        entered = (step.arrive <= time) & (step.arrive > self.time)
        counts.entered += entered
        counts.opened[entered] = step.arrive[entered]
        counts.call[entered] = step.call[entered]
        done = (step.complete <= time) & (step.complete > self.time)
        sequence = counts.completed + 1
        timed = done & (sequence >= counts.first)
        if np.any(timed):
            with np.errstate(invalid="ignore"):  # ranks that never come
                waited = step.complete - np.fmax(step.arrive, counts.last)
            counts.sum[timed] += waited[timed]
            counts.low[timed] = np.minimum(counts.low[timed], waited[timed])
            counts.high[timed] = np.maximum(counts.high[timed], waited[timed])
            for rank in np.flatnonzero(timed & (sequence - counts.first + 1 == self._window)):
                counts.whole[rank] = Timing(
                    int(counts.first[rank]),
                    self._window,
                    float(counts.sum[rank]),
                    float(counts.low[rank]),
                    float(counts.high[rank]),
                    4 * _NUMELS[step.kind] * self._window,
                    self._window if step.kind == "pp" else 0,
                )
                counts.first[rank] += self._window
                counts.sum[rank], counts.low[rank], counts.high[rank] = 0.0, np.inf, 0.0
        counts.completed += done
        counts.last[done] = step.complete[done]

    def _rows(self, kind: str) -> list[ProcessGroup]:
        counts, of, size = self._counts[kind], self.layout.group_of[kind], self.layout.groups[kind].shape[1]
        entered, completed, calls = counts.entered.tolist(), counts.completed.tolist(), counts.call.tolist()
        opened = (self.time - counts.opened).tolist()
        idle = (self.time - np.where(np.isnan(counts.last), self._began, counts.last)).tolist()
        previous, names = self.layout.previous_stage.tolist(), [self.identity(kind, row) for row in range(of.max() + 1)]
        found = []
        for number, row in enumerate(of.tolist()):
            is_open = entered[number] > completed[number]
            root = previous[number] if kind == "pp" else -1
            name = "all_gather" if calls[number] else _NAMES[kind]
            operation = Operation(
                entered[number], name, "bfloat16", _NUMELS[kind], root, 1 + zlib.crc32(f"{name} {kind}".encode())
            )
            found.append(
                ProcessGroup(
                    names[row],
                    f"{kind}{row}" if kind != "world" else "world",
                    size,
                    entered[number],
                    completed[number],
                    opened[number] if is_open else None,
                    idle[number],
                    operation,
                    counts.whole.get(number),
                )
            )
        return found

    def _rank(self, number: int, node: str, groups: list[ProcessGroup]) -> Rank:
        conditions = self.conditions
        process = conditions.processes.get(number)
        if process is None:
            process = Process("running", "R", cpu_seconds=self.time - self._began)
        process.throttled_seconds = float(self._throttled[number])
        return Rank(number, self.layout.world_size, node, 1000 + number, self.generation, process, groups)

    def _edges(self) -> dict[int, list[Edge]]:
        found: dict[int, list[Edge]] = {}
        broken, unread = self.conditions.broken_link, self.conditions.unread
        moved, busy = self._acked.astype(np.int64).tolist(), self._busy.tolist()
        for (rank, peer), nbytes, seconds in zip(self.layout.edges.tolist(), moved, busy, strict=True):
            is_broken = broken in (rank, peer)
            found.setdefault(rank, []).append(
                Edge(
                    rank,
                    peer,
                    nbytes,
                    nbytes,
                    seconds,
                    receive_queue=1 << 20 if rank == unread else 0,
                    send_queue=1 << 20 if is_broken else 0,
                    backoff=5 if is_broken else 0,
                    retransmits=40 if is_broken else 0,
                    rtt_seconds=1e-4,
                    local=f"10.0.0.1:{rank}",
                    remote=f"10.0.0.1:{peer}",
                )
            )
        return found
