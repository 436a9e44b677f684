"""The job at one time: the ranks of its newest generation that are in view, what they say of each process group, and
verdicts on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ... import words
from ...columns import EdgeColumns, RankColumns
from ...confidence import Basis, confidence_of
from ...model import MAX_SUSPECTS, Finding, holder_of_lock
from .groups import Groups
from .histories import CallHistories
from .work import Work

if TYPE_CHECKING:
    from ...model import Code, Level, Rank, Thresholds
    from ..graph import Difference
    from .groups import Group

LONG = 6.0
"""Hang gates that ranks may take for what is nothing wrong in itself, as long as nothing else speaks against it."""

RUNS = "runs, or would if it had a CPU (state R)"  # its main thread
_SUSPECTS_WITH_STACKS = 3
_SIDES_WITH_STACKS = 4
_MAX_WORKERS = 2
_BLOCKED_SHARE = 0.1  # of the hang gate
_RECENT_SHARE = 0.5  # of the hang gate; on the recordings 0.3 leads to the same verdicts
_USUAL = 20.0  # a wait of so many times the usual time between operations is none of a job that is well
_ENOUGH = 10  # operations of a group, from which the time between them is known
_WAITS = "DataLoader"  # an activity of a rank that does nothing itself
_STALE_SECONDS = 3.0  # of the page of a rank that runs: the probe sends many heartbeats a second


class Sample(NamedTuple):
    """What the transport had moved at one time.

    Attributes:
        moved: bytes by process group and rank, of operations that block, where the transport counts them itself.
    """

    time: float
    edges: EdgeColumns
    moved: dict[tuple[str, int], int]


@dataclass(slots=True)
class Verdict:
    """A finding, and what kind of cause it has: verdicts of one kind on the same ranks are one finding over time."""

    kind: str
    finding: Finding
    witnesses: list[int] = field(default_factory=list)  # whose stacks tell more, where no rank is suspected

    @property
    def stacks_of(self) -> list[int]:
        """Ranks whose stacks would help: the first suspects, else a rank of each side, else the witnesses."""
        if self.finding.suspects:
            return self.finding.suspects[:_SUSPECTS_WITH_STACKS]
        return [side[0] for side in self.finding.sides[:_SIDES_WITH_STACKS] if side] or self.witnesses


@dataclass
class Job:
    time: float
    world_size: int
    ranks: Mapping[int, Rank]  # of the newest generation, on nodes whose agents report
    silent_nodes: list[str]
    edges: EdgeColumns
    thresholds: Thresholds
    phases: dict[int, str]  # declared by ranks, now or within the hang gate: a rank that ends one gets the gate's time
    samples: Sequence[Sample] = ()  # of the transport, the oldest first
    work: Work = field(default_factory=Work)
    histories: CallHistories = field(default_factory=CallHistories)

    @cached_property
    def columns(self) -> RankColumns:
        return RankColumns.of(self.ranks)

    @cached_property
    def groups(self) -> Groups:
        return Groups(self.columns, self.world_size)

    @cached_property
    def differences(self) -> list[Difference]:
        """The first calls that histories differ in."""
        return self.histories.differences(self.columns, self.groups)

    @property
    def blocked_seconds(self) -> float:
        """From which an operation that is open blocks its rank; a younger one may be part of normal work."""
        return _BLOCKED_SHARE * self.thresholds.hang_seconds

    @property
    def recent_seconds(self) -> float:
        """Within which things happened that go on: operations are completed, bytes move.

        Ranks of a job that is well compute for some time in between, and at the end of a large transfer the last one
        waits with the rest at rest; a rank that is stuck since the hang began has done nothing for the whole gate.
        """
        return _RECENT_SHARE * self.thresholds.hang_seconds

    def is_unusual(self, group: Group, seconds: float) -> bool:
        """Whether its group used to complete operations so often that a wait of this length is none of a job that is
        well.

        It is taken for granted where it is not known for how long the group's ranks had run, but not where the group
        has completed few operations.
        """
        rate = float(np.fmax.reduce(group.baseline_rates, initial=0.0))
        if not rate:  # of a job that ran too briefly to know, from its set-up on
            elapsed = float(np.fmax.reduce(self.columns.setups[1][group.places], initial=0.0)) - seconds
            if elapsed <= 0:
                return True
            completed = int(group.completed.max())
            rate = completed / elapsed if completed >= _ENOUGH else 0.0
        return rate * seconds >= _USUAL

    @cached_property
    def runnable(self) -> frozenset[int]:
        """Ranks that were in state R in half of the looks within the hang gate, or in more: they work, however little
        of a CPU they get. A thread that sleeps in a call that does not return is in that state at no time."""
        first = self.time - self.thresholds.hang_seconds
        looks = self.work.looks(self.time, self.columns, lambda places: places.runnable & places.are_alive, first)
        return frozenset(number for number, share in looks.items() if share >= 0.5)

    @cached_property
    def stopped(self) -> frozenset[int]:
        """Ranks whose processes are stopped (state T)."""
        return frozenset(self.columns.numbers[self.columns.places.are_stopped].tolist())

    @cached_property
    def out_of_view(self) -> list[int]:
        return [number for number in range(self.world_size) if number not in self.ranks]

    @cached_property
    def _stale(self) -> frozenset[int]:
        places = self.columns.places
        are_old = (places.heartbeat_seconds > _STALE_SECONDS) & places.are_alive & ~places.are_stopped
        return frozenset(self.columns.numbers[are_old].tolist())

    def are_stale(self, numbers: Iterable[int]) -> bool:
        """Whether the page of one of these ranks is old, and the rank runs: what it says may be over."""
        return not self._stale.isdisjoint(numbers)

    def unseen(self, group: Group) -> list[int]:
        """Ranks that are not in view and may be the members that the group lacks."""
        if group.is_whole:
            return []
        members = self.groups.ranks_of(group)
        return [number for number in members if number not in self.ranks] if members else self.out_of_view

    def holders(self, number: int) -> list[int]:
        """The ranks that may hold the file lock that this one waits for: those of that pid on its node, or whose child
        has it. Ranks of several containers may have the same."""
        pid, node = holder_of_lock(self.ranks[number].activity), self.ranks[number].node
        own = self.columns.numbers[self.columns.places.pids == (pid or -1)].tolist()
        parents = [n for n in self.columns.with_workers if pid in [each.pid for each in self.ranks[n].process.workers]]
        return sorted(other for other in {*own, *parents} if self.ranks[other].node == node)

    def doing(self, rank: Rank, seconds: float | None = None) -> str:
        """What shows that a rank has made progress by itself within these seconds, else the hang gate; "" where nothing
        does. The states of its process and of its children tell where their times tell little."""
        since = self.time - (self.thresholds.hang_seconds if seconds is None else seconds)
        runs = self.is_busy(rank) and rank.rank in self.runnable
        at_work = [f"has a child at work ({each.name})" for each in rank.process.workers if each.state == "R"]
        at_work += [f"is in {rank.activity} and {RUNS}"] if runs else []
        return self.work.since(since, self.time, rank) or next(iter(at_work), "")

    def is_busy(self, rank: Rank) -> bool:
        """Whether its stack shows that it saves, loads or compiles: then it may do so though nothing of it is seen."""
        is_idle = rank.is_waiting or holder_of_lock(rank.activity) is not None
        return rank.activity not in ("", _WAITS) and not is_idle

    def account(self, number: int, *, where: str = "", works: str = "") -> str:
        """What is known of a rank that others wait for, or that waits: a fact for the evidence.

        "rank 2 has entered #25 and nothing since; its process is in state S, its main thread is in DataLoader for 9 s".

        Args:
            where: it is, if the caller knows better than the rank's page.
            works: what shows that it makes progress, where anything does.
        """
        rank = self.ranks[number]
        where = where or words.where(rank)
        facts = [f"it {works}" if works else words.state(rank)]
        if rank.activity and words.activity(rank) not in where:
            verb = "is in" if holder_of_lock(rank.activity) is None else "waits for a"
            facts.append(f"its main thread {verb} {words.activity(rank)}")
        for worker in rank.process.workers[:_MAX_WORKERS]:
            channel = f" in {worker.wait_channel}" if worker.wait_channel not in ("", "0") else ""
            facts.append(f"its child {worker.name} (pid {worker.pid}) is in state {worker.state}{channel}")
        if number in self.phases:
            ended = "" if rank.phase else ", which has just ended"
            facts.append(f"in declared phase {self.phases[number]!r}{ended}")
        return "; ".join(filter(None, [f"rank {number} {where}", ", ".join(filter(None, facts))]))

    def verdict(
        self,
        kind: str,
        code: Code,
        group: Group | None,
        suspects: Sequence[int],
        summary: str,
        evidence: list[str],
        basis: Basis,
        *,
        victims: int,
        is_incomplete: bool = False,
        level: Level = "finding",
        sides: Sequence[list[int]] = (),
        witnesses: Sequence[int] = (),
        seconds: float | None = None,
    ) -> Verdict:
        """On a group, or with None on processes. What is out of view of a group lowers the confidence, and is told.

        Args:
            seconds: how long ago the trouble began, if that is known.
        """
        named = list(suspects[:MAX_SUSPECTS])
        doubtful, reasons = self._doubts(group, named) if group else (False, [])
        confidence = confidence_of(code, basis, named, sides, is_incomplete=doubtful or is_incomplete)
        title = group.title if group else ""
        since = None if seconds is None else self.time - seconds
        finding = Finding(
            code, level, self.time, named, list(sides), title, summary, evidence + reasons, confidence, victims,
            since=since,
        )  # fmt: skip
        return Verdict(kind, finding, list(witnesses))

    def _doubts(self, group: Group, ranks: Iterable[int]) -> tuple[bool, list[str]]:
        """Whether anything that a verdict on this group depends on is out of view; and what to know about the view."""
        reasons = []
        ends = {peer for peer in group.peers if peer in self.ranks}  # they may not know of the pair yet
        lacking = group.size - len(group.numbers) - len(ends - group.members.keys())
        if lacking > 0:
            reasons.append(f"{lacking} of {group.size} members of {group.title} are not in view")
        if self.silent_nodes:
            names = ", ".join(sorted(self.silent_nodes)[:4])
            reasons.append(f"no news from the agents of {words.count(len(self.silent_nodes), 'node')} ({names})")
        overflown = group.numbers[self.columns.places.overflow[group.places]].tolist()
        if overflown:
            reasons.append(f"{words.ranks(overflown)}: more process groups than a page has room for")
        is_incomplete = bool(reasons)
        for number in ranks:
            rank = self.ranks.get(number)
            if rank is not None and rank.process.is_alive and rank.heartbeat_seconds > _STALE_SECONDS:
                state = "it was stopped, or held the GIL"  # in a job that has ended
                if rank.process.state:
                    works = self.doing(rank)  # it spins, or works with the lock held
                    state = f"it {works}" if works else words.state(rank)
                    state += "" if rank.process.is_stopped else " and may hold the GIL"
                reasons.append(
                    f"rank {number} has sent no heartbeat for {words.seconds(rank.heartbeat_seconds)}: {state}"
                )
        return is_incomplete, reasons
