"""One node at one time: the pages of its ranks, what the kernel says of their processes, and their connections."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..model import MAX_RANKS, Observation, Operation, Process, ProcessGroup, Rank, Timing
from ..page import process
from ..page.rank_page import Page, Slot, read_page
from . import tcp
from .frozen_rank import FrozenRanks
from .stacks import Target

if TYPE_CHECKING:
    from pathlib import Path

    from ..model import Edge

_ALIVE_SECONDS: Final = 1.0  # a younger heartbeat shows life where the process cannot be seen (in another container)
_MAX_PAGES = 8192
_PLUGIN = ".nccl.page"
_MAX_COUNT = 1 << 62  # what counts further is damaged


class Observer:
    """Samples the ranks whose pages are in one directory. For one thread.

    Of each rank the newest generation counts, and of several runs the one with the last heartbeat. Pages of another
    boot are left out. A rank whose page is damaged stays as it was seen before, if it was; see `damaged`.
    """

    def __init__(self, directory: Path, node: str) -> None:
        self._directory = directory
        self._node = node
        self._tcp = tcp.TcpReader()
        self._pages: dict[Path, Page] = {}  # of the newest generation, as they were read last
        self._clocks: dict[Path, process.WaitClock] = {}
        self._alive: dict[Path, tuple[float, Process]] = {}  # processes when they were last seen to live
        self._frozen_ranks = FrozenRanks()
        self._owners: dict[str, int] = {}  # rank by its end of a connection
        self.damaged: list[Path] = []  # pages that could not be read this time

    def close(self) -> None:
        self._tcp.close()

    def observe(self) -> Observation:
        """The node now, on the monotonic clock. Files and processes that come and go are no error."""
        self._read()
        now = time.monotonic()
        ranks = {page.rank: self._rank(path, page, now) for path, page in self._pages.items()}
        for path, page in self._pages.items():
            if page.has_socket:
                self._frozen_ranks.complete(path, ranks[page.rank], now)
        run_id = next((f"{page.run:016x}" for page in self._pages.values()), "")
        world_size = max((rank.world_size for rank in ranks.values()), default=0)
        return Observation(now, run_id, world_size, ranks, self._edges(ranks))

    def target(self, rank: int) -> Target | None:
        """Whom to ask for the stack of a rank; None if it is not among those seen last."""
        for path, page in self._pages.items():
            if page.rank == rank:
                return Target(page.pid, page.start_time, path, _doing(page))
        return None

    def _read(self) -> None:
        known, pages = self._pages, []
        self.damaged = []
        for path in sorted(self._directory.glob("rank-*-*.page"), key=_own_first)[:_MAX_PAGES]:
            page = read_page(path)
            if (page is None and path.exists()) or (page is not None and not _is_credible(path, page)):
                self.damaged.append(path)
                page = known.get(path)
            if page is not None and page.boot_id == process.boot_id():
                pages.append((path, page))
        run = max(pages, key=lambda found: found[1].heartbeat_ns)[1].run if pages else 0
        newest: dict[int, tuple[Path, Page]] = {}
        for path, page in pages:
            if page.run == run and (page.rank not in newest or page.restart_count > newest[page.rank][1].restart_count):
                newest[page.rank] = path, page
        plugins = {_process_of(page): page for path, page in pages if path.name.endswith(_PLUGIN)}
        self._pages = {path: _joined(page, plugins.get(_process_of(page))) for path, page in newest.values()}
        self._clocks = {path: clock for path, clock in self._clocks.items() if path in self._pages}
        self._alive = {path: seen for path, seen in self._alive.items() if path in self._pages}

    def _rank(self, path: Path, page: Page, now: float) -> Rank:
        heartbeat_age = max(0.0, now - page.heartbeat_ns / 1e9)
        return Rank(
            rank=page.rank,
            world_size=page.world_size,
            node=self._node,
            pid=page.pid,
            generation=page.restart_count,
            process=self._process(path, page, now, heartbeat_age),
            process_groups=[_process_group(slot, page, now) for slot in page.slots if _is_sound(slot)],
            heartbeat_seconds=heartbeat_age,
            timed=page.timed,
            phase=page.phase,
            overflow=page.overflow,
        )

    def _process(self, path: Path, page: Page, now: float, heartbeat_age: float) -> Process:
        stat = process.read_stat(page.pid)
        if stat is not None and stat.start_ticks == page.start_time and stat.is_alive:
            throttling = process.throttling(page.pid)
            clock = self._clocks.setdefault(path, process.WaitClock(page.pid))
            seen = Process(
                life="stopped" if stat.is_stopped else "running",
                state=stat.state,
                cpu_seconds=stat.cpu_seconds,
                wait_seconds=clock.read(),
                num_throttled=throttling.num_throttled,
                throttled_seconds=throttling.seconds,
                exit_reason=page.exit_reason,
            )
            self._alive[path] = now, seen
            return seen
        seen_at, last = self._alive.get(path, (0.0, Process("running")))
        if not seen_at and not page.exit_reason and heartbeat_age < _ALIVE_SECONDS:
            return Process("running")
        if page.exit_reason:
            gone = heartbeat_age if page.exit_ns is None else max(0.0, now - page.exit_ns / 1e9)
            return replace(last, life="exited", state="?", exit_reason=page.exit_reason, gone_seconds=gone)
        return replace(last, life="lost", state="?", gone_seconds=min(heartbeat_age, now - seen_at))

    def _edges(self, ranks: dict[int, Rank]) -> list[Edge]:
        alive = {rank.rank: rank.pid for rank in ranks.values() if rank.process.is_alive}
        edges = self._tcp.read(alive)
        ends = {edge.local for edge in edges} | {edge.remote for edge in edges}
        # The owner of an end is remembered as long as the other end is there: of a rank that died, nothing else tells.
        self._owners = {end: owner for end, owner in self._owners.items() if end in ends}
        self._owners.update((edge.local, edge.rank) for edge in edges)
        for edge in edges:
            edge.peer = self._owners.get(edge.remote, -1)
        return edges


def _is_credible(path: Path, page: Page) -> bool:
    """Whether a page is of the rank and generation that its name says, in a job that there can be."""
    is_named = path.name.startswith(f"rank-{page.rank}-{page.restart_count}.")
    return is_named and 0 <= page.rank < page.world_size <= MAX_RANKS


def _own_first(path: Path) -> tuple[bool, str]:
    """The probe's page comes before that of NCCL's plugin: of one rank and generation the first one counts."""
    return path.name.endswith(_PLUGIN), path.name


def _process_of(page: Page) -> tuple[int, int]:
    return page.pid, page.start_time


def _joined(page: Page, plugin: Page | None) -> Page:
    """With the process groups that NCCL's plugin sees in the same process."""
    if plugin is None or plugin is page:
        return page
    slots = {slot.id: slot for slot in page.slots + plugin.slots}  # a damaged page was joined when it was last read
    return replace(page, slots=tuple(slots.values()), overflow=page.overflow or plugin.overflow)


def _process_group(slot: Slot, page: Page, now: float) -> ProcessGroup:
    # A rank that has begun to time shows signatures of the other kind where it has not entered anything since.
    signature = slot.signature if slot.active or not page.timed else 0
    return ProcessGroup(
        id=f"{slot.id:016x}",
        name=slot.name,
        size=slot.size,
        enqueued=slot.enqueued,
        completed=slot.completed,
        open_seconds=_age(now, slot.enter_ns) if slot.is_open else None,
        idle_seconds=_age(now, slot.completed_ns),
        operation=Operation(slot.sequence, slot.operation, slot.dtype, slot.numel, slot.root, signature)
        if slot.sequence > 0
        else None,
        timing=_timing(slot),
        sent_bytes=slot.sent_nbytes,
        received_bytes=slot.received_nbytes,
        baseline_rate=slot.baseline_rate,
    )


def _timing(slot: Slot) -> Timing | None:
    if slot.first_sequence is None or slot.num_rounds == 0:
        return None
    return Timing(
        first_sequence=slot.first_sequence,
        num_rounds=slot.num_rounds,
        sum_seconds=slot.sum_seconds,
        min_seconds=slot.min_seconds,
        max_seconds=slot.max_seconds,
        num_bytes=slot.num_bytes,
        rooted_or_pairwise=slot.rooted_or_pairwise,
    )


def _is_sound(slot: Slot) -> bool:
    """Whatever a damaged page holds, numbers have to fit into a report."""
    counts = slot.enqueued, slot.sent_nbytes, slot.received_nbytes, slot.num_bytes, slot.sequence, slot.completed
    rate = slot.baseline_rate or 0.0
    return all(-1 <= count < _MAX_COUNT for count in counts) and 0.0 <= rate < 1e12


def _age(now: float, time_ns: int | None) -> float | None:
    return None if time_ns is None else max(0.0, now - time_ns / 1e9)


def _doing(page: Page) -> str:
    """What a rank was last known to do, for a reader."""
    if not page.slots:
        return "no operation yet"
    slot = max(page.slots, key=lambda slot: (slot.is_open, slot.enter_ns or slot.completed_ns or 0))
    group = slot.name or f"{slot.id:016x}"
    state = "in" if slot.is_open else "last seen after"
    return f"{state} operation {slot.sequence} of {group}{f' ({slot.operation})' if slot.operation else ''}"
