"""The job at one time: the ranks of its newest generation that are in view, and what they say of each process group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ... import words
from ...columns import EdgeColumns, RankColumns
from ...model import Finding
from .confidence import confidence_of
from .groups import Groups
from .histories import CallHistories
from .verdict import MAX_SUSPECTS, Verdict
from .waits import UNCOUNTED, holder_of_lock
from .work import Work

if TYPE_CHECKING:
    from ...model import Code, Level, Rank, Thresholds
    from ..graph import Difference
    from .confidence import Basis
    from .flows import Sample
    from .groups import Group

RUNS = "runs, or would if it had a CPU (state R)"  # its main thread
_MAX_WORKERS = 2
_WAITS = "DataLoader"  # an activity of a rank that does nothing itself
_STALE_SECONDS = 3.0  # of the page of a rank that runs: the probe sends many heartbeats a second


def is_waiting(rank: Rank) -> bool:
    """Whether its stack shows that it waits for others."""
    return rank.activity in UNCOUNTED


def _state(rank: Rank) -> str:
    if rank.process.is_stopped:
        return "its process is stopped"
    return f"its process is in state {rank.process.state}" if rank.process.state else ""  # not known of the past


def _where(rank: Rank) -> str:
    """The operation that a rank has been in for the longest; if in none, what its stack or its set-up say."""
    if group := rank.longest_open:
        operation = words.numbered(group.operation, group.open_sequence, group.title)
        return f"is in {operation} for {words.seconds(group.open_seconds or 0.0)}"
    if is_waiting(rank):
        return f"is in {_activity(rank)}"
    return {"before init": "has not called init_process_group", "in init": "is in init_process_group"}.get(
        rank.setup, "is in no operation that the probe sees"
    )


def _activity(rank: Rank) -> str:
    since = "" if rank.activity_seconds is None else f" for {words.seconds(rank.activity_seconds)}"
    return rank.activity + since


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
        is_idle = is_waiting(rank) or holder_of_lock(rank.activity) is not None
        return rank.activity not in ("", _WAITS) and not is_idle

    def account(self, number: int, *, where: str = "", works: str = "") -> str:
        """What is known of a rank that others wait for, or that waits: a fact for the evidence.

        "rank 2 has entered #25 and nothing since; its process is in state S, its main thread is in DataLoader for 9 s".

        Args:
            where: it is, if the caller knows better than the rank's page.
            works: what shows that it makes progress, where anything does.
        """
        rank = self.ranks[number]
        where = where or _where(rank)
        facts = [f"it {works}" if works else _state(rank)]
        if rank.activity and _activity(rank) not in where:
            verb = "is in" if holder_of_lock(rank.activity) is None else "waits for a"
            facts.append(f"its main thread {verb} {_activity(rank)}")
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
                    state = f"it {works}" if works else _state(rank)
                    state += "" if rank.process.is_stopped else " and may hold the GIL"
                reasons.append(
                    f"rank {number} has sent no heartbeat for {words.seconds(rank.heartbeat_seconds)}: {state}"
                )
        return is_incomplete, reasons
