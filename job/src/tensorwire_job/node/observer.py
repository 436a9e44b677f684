"""One node at one time: the pages of its ranks, what the kernel says of their processes, and their connections."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..model import MAX_RANKS, REPLACED, Observation, Process, Rank
from ..page import call_file, process
from ..page.rank_page import RankPage, age, read_page
from . import tcp, workers
from .frozen_rank import FrozenRanks
from .stacks import StackTarget

if TYPE_CHECKING:
    from ..model import Call, Edge, ProcessGroup

# A younger pulse or heartbeat shows life where the process cannot be seen (in another container).
_ALIVE_SECONDS: Final = 1.0
_SILENT_SECONDS: Final = 2.0  # without a pulse, which needs no lock of Python's
_IDLE_SECONDS: Final = 2.0  # a rank that has completed nothing for so long may wait for its workers
_MAX_PAGES = 8192
_PLUGIN = ".nccl.page"


class Observer:
    """Samples the ranks whose pages are in one directory. For one thread.

    The newest generation of each rank counts, and only the run with the last heartbeat; of two that live the one that
    was seen before. Pages of another boot are left out. A rank whose page is damaged stays as it was seen before, if it
    was; see `damaged`.
    """

    def __init__(self, directory: Path, node: str) -> None:
        self._directory = directory
        self._node = node
        self._tcp = tcp.TcpReader()
        self._known: dict[Path, RankPage] = {}  # all pages, as they were read last
        self._run = 0
        self._pages: dict[Path, RankPage] = {}  # of these, one for each rank: that of the newest generation
        self._plugins: dict[tuple[int, int], RankPage] = {}  # pages of NCCL's plugin, by process
        self._clocks: dict[Path, process.WaitClock] = {}
        self._alive: dict[Path, tuple[float, Process]] = {}  # processes when they were last seen to live
        self._calls: dict[Path, tuple[int, tuple[Call, ...]] | None] = {}
        self._call_files: dict[Path, tuple[int, int]] = {}  # of those that were read, which file it was
        self._frozen_ranks = FrozenRanks()
        self._owners: dict[str, int] = {}  # rank by its end of a connection
        self.damaged: list[Path] = []  # pages that could not be read this time

    def close(self) -> None:
        self._tcp.close()

    def observe(self) -> Observation:
        """The node now, on the monotonic clock. Files and processes that come and go are no error."""
        self._read()
        now = time.monotonic()
        ranks = {page.header.rank: self._rank(path, page, now) for path, page in self._pages.items()}
        for path, page in self._pages.items():
            if page.has_socket:
                self._frozen_ranks.complete(path, ranks[page.header.rank], now)
        run_id = next((f"{page.header.run:016x}" for page in self._pages.values()), "")
        world_size = max((rank.world_size for rank in ranks.values()), default=0)
        return Observation(now, run_id, world_size, ranks, self._edges(ranks))

    def target(self, rank: int) -> StackTarget | None:
        """The process to ask for the stack of a rank; None if the rank is not among those seen last."""
        for path, page in self._pages.items():
            if page.header.rank == rank:
                groups = self._process_groups(page, time.monotonic())
                return StackTarget(*_process_of(page), path, _doing(groups))
        return None

    def _read(self) -> None:
        found: dict[Path, RankPage] = {}
        self.damaged = []
        for path in sorted(self._directory.glob("rank-*-*.page"), key=_own_first)[:_MAX_PAGES]:
            page = read_page(path)
            if (page is None and path.exists()) or (page is not None and not _is_credible(path, page)):
                self.damaged.append(path)
                page = self._known.get(path)
            if page is not None and page.boot_id == process.boot_id():
                found[path] = page
        run = self._run = _run_of(found.values(), self._run)
        newest: dict[int, tuple[Path, RankPage]] = {}
        for path, page in found.items():
            header = page.header
            if header.run == run and (
                header.rank not in newest or header.restart_count > newest[header.rank][1].header.restart_count
            ):
                newest[header.rank] = path, page
        self._known = found
        self._pages = dict(newest.values())
        self._plugins = {_process_of(page): page for path, page in found.items() if path.name.endswith(_PLUGIN)}
        self._clocks = {path: clock for path, clock in self._clocks.items() if path in self._pages}
        self._alive = {path: seen for path, seen in self._alive.items() if path in self._pages}
        self._calls = {path: self._read_calls(path) for path in self._pages}

    def _read_calls(self, page: Path) -> tuple[int, tuple[Call, ...]] | None:
        """The last calls of a rank. A file is read once: it is replaced as a whole."""
        try:
            facts = call_file.call_path(page).lstat()
        except OSError:
            return None
        file = facts.st_ino, facts.st_mtime_ns
        if self._call_files.get(page) == file:
            return self._calls.get(page)
        self._call_files[page] = file
        return call_file.read(page)

    def _rank(self, path: Path, page: RankPage, now: float) -> Rank:
        header = page.header
        heartbeat_age = max(0.0, now - header.heartbeat_ns / 1e9)
        plugin = self._plugins.get(_process_of(page), page)
        groups = self._process_groups(page, now)
        read_ns, calls = self._calls.get(path) or (0, ())
        return Rank(
            rank=header.rank,
            world_size=header.world_size,
            node=self._node,
            pid=header.pid,
            generation=header.restart_count,
            process=self._process(path, page, groups, now),
            process_groups=groups,
            heartbeat_seconds=heartbeat_age,
            timed=page.timed,
            phase=page.phase,
            overflow=page.overflow or plugin.overflow,
            setup=page.setup,
            setup_seconds=age(now, header.setup_ns),
            activity=page.activity,
            activity_seconds=age(now, header.activity_ns) if page.activity else None,
            calls=calls,
            calls_seconds=age(now, read_ns),
        )

    def _process_groups(self, page: RankPage, now: float) -> list[ProcessGroup]:
        """The process groups of a page, and those that NCCL's plugin sees in the same process."""
        plugin = self._plugins.get(_process_of(page), page)
        pages = (page,) if plugin is page else (page, plugin)
        return [group for each in pages for group in each.process_groups(now)]

    def _process(self, path: Path, page: RankPage, groups: list[ProcessGroup], now: float) -> Process:
        header = page.header
        silent_seconds = max(0.0, now - max(header.heartbeat_ns, header.pulse_ns) / 1e9)
        said = _said(page, now, silent_seconds)
        stat = process.read_stat(header.pid)
        if stat is not None and stat.start_ticks == header.start_time and stat.is_alive:
            if silent_seconds > _SILENT_SECONDS and not stat.is_stopped and not _has_page(path, header.pid):
                _, last = self._alive.get(path, (0.0, Process("running")))
                said |= {"exit_reason": REPLACED, "exit_kind": "end", "exit_seconds": silent_seconds}
                return replace(last, life="exited", state=stat.state, gone_seconds=silent_seconds, **said)
            throttling = process.throttling(header.pid)
            clock = self._clocks.setdefault(path, process.WaitClock(header.pid))
            is_idle = all(group.idle_seconds is None or group.idle_seconds > _IDLE_SECONDS for group in groups)
            read_bytes, written_bytes = process.transferred(header.pid)
            seen = Process(
                life="stopped" if stat.is_stopped else "running",
                state=stat.state,
                cpu_seconds=stat.cpu_seconds,
                wait_seconds=clock.read(),
                num_throttled=throttling.num_throttled,
                throttled_seconds=throttling.seconds,
                read_bytes=read_bytes,
                written_bytes=written_bytes,
                workers=workers.read(header.pid) if is_idle else [],
                **said,
            )
            self._alive[path] = now, seen
            return seen
        seen_at, last = self._alive.get(path, (0.0, Process("running")))
        if not seen_at and not said["exit_reason"] and silent_seconds < _ALIVE_SECONDS:
            return Process("running")
        if said["exit_reason"] and page.exit_kind != "crash":
            # It may have taken a while to end, but its operations are known for the moment at which it told the reason.
            gone = silent_seconds if said["exit_seconds"] is None else said["exit_seconds"]
            return replace(last, life="exited", state="?", gone_seconds=gone, **said)
        return replace(last, life="lost", state="?", gone_seconds=min(silent_seconds, now - seen_at), **said)

    def _edges(self, ranks: dict[int, Rank]) -> list[Edge]:
        alive = {rank.rank: rank.pid for rank in ranks.values() if rank.process.is_alive}
        edges = self._tcp.read(alive)
        ends = {edge.local for edge in edges} | {edge.remote for edge in edges}
        # The owner of an end is remembered as long as the other end is there: nothing else names a rank that died.
        self._owners = {end: owner for end, owner in self._owners.items() if end in ends}
        self._owners.update((edge.local, edge.rank) for edge in edges)
        for edge in edges:
            edge.peer = self._owners.get(edge.remote, -1)
        return edges


def _run_of(pages: Iterable[RankPage], before: int) -> int:
    """The run with the last heartbeat, or the one before as long as it has heartbeats too: two jobs that share a
    directory would take turns, and neither would be seen for long enough."""
    newest: dict[int, int] = {}
    for page in pages:
        newest[page.header.run] = max(newest.get(page.header.run, 0), page.header.heartbeat_ns)
    last = max(newest, key=lambda run: newest[run], default=0)
    lives_on = before in newest and newest[last] - newest[before] < _SILENT_SECONDS * 1e9
    return before if lives_on else last


def _is_credible(path: Path, page: RankPage) -> bool:
    """Whether a page is of the rank and generation that its name says, in a job that there can be."""
    header = page.header
    is_named = path.name.startswith(f"rank-{header.rank}-{header.restart_count}.")
    return is_named and 0 <= header.rank < header.world_size <= MAX_RANKS


def _has_page(path: Path, pid: int) -> bool:
    """Whether the process still has the page of its probe, which is never unmapped but by exec."""
    return path.name.endswith(_PLUGIN) or process.maps_file(pid, path.name)


def _own_first(path: Path) -> tuple[bool, str]:
    """The probe's page comes before that of NCCL's plugin: the first page of a rank and generation counts."""
    return path.name.endswith(_PLUGIN), path.name


def _process_of(page: RankPage) -> tuple[int, int]:
    """Its pid and start time, which name it for good."""
    return page.header.pid, page.header.start_time


def _said(page: RankPage, now: float, silent_seconds: float) -> dict[str, Any]:
    """The reason and the signal of its end, as the process told them."""
    header = page.header
    # Some processes recover from a crash that ends others. One that does not has no pulse, though the kernel may still
    # write its memory to a file.
    recovers = page.exit_kind == "crash" and silent_seconds < _ALIVE_SECONDS and page.is_alive
    return {
        "exit_reason": "" if recovers else page.exit_reason,
        "exit_kind": "" if recovers else page.exit_kind,
        "exit_seconds": None if recovers else age(now, header.exit_ns),
        "signal": page.signal,
        "signal_seconds": age(now, header.signal_ns) if page.signal else None,
    }


def _doing(groups: list[ProcessGroup]) -> str:
    """The last known operation of a rank, for a reader."""
    known = [(group, group.operation) for group in groups if group.operation is not None]
    if not known:
        return "no operation yet"
    group, operation = min(known, key=lambda pair: _recency(pair[0]))
    state = "last seen after" if group.open_seconds is None else "in"
    name = f" ({operation.name})" if operation.name else ""
    return f"{state} operation {operation.sequence} of {group.title}{name}"


def _recency(group: ProcessGroup) -> tuple[bool, float]:
    """The least for the group in which a rank waits, or whose operation it completed last."""
    age = group.idle_seconds if group.open_seconds is None else group.open_seconds
    return group.open_seconds is None, math.inf if age is None else age
