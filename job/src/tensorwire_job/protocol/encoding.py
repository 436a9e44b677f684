"""Reports of an agent on its node: only the changes since the last report, in numbers that are quick to read.

A report is a JSON object with these members:

    clock     the agent's own clock, which the other times are on too
    full      true: forget the reports before this one
    heads     new descriptions of ranks: [rank, world size, pid, generation, life, exit reason, phase]
    groups    new descriptions of process groups: [id, name, size]
    works     new descriptions of operations: [name, dtype, numel, root, signature]
    links     new connections: [rank, peer, local, remote]
    ranks     a row for each rank that changed
    details   a row for each process group of a rank whose timing or progress changed
    edges     a row for each connection that changed
    gone      ranks that are no more
    closed    connections that are no more, by number
    members   of new process groups: [group, first rank, extent and stride of each dimension]; see members.py
    states    rare facts, of each rank where one changed: [rank, exit kind, exit at, signal, signal at, setup,
              set up at, activity, active since, workers], each worker [pid, name, state, wait channel,
              CPU time in tenths of a second]
    transfers a row for each rank that read or wrote some: rank, bytes read, bytes written
    calls     the last calls of each rank that read them anew; see calls.py

All but the clock are left out where they are empty or false. In a training job most ranks of a node change. A report
then has a row for each, in the same order, and the analyzer takes such rows over unread.

Descriptions and connections are numbered as they come, from 0, and rows name them by number. Rows are 64-bit integers,
little-endian: the analyzer reads them in place, as columns. Times are in microseconds; -1 is for none. In files,
which are JSON, rows are in base64.

    ranks     number of integers behind this one; head, state, CPU time, run-queue wait, num_throttled, throttled time,
              gone at, last heartbeat at (-1: just now), flags; for each process group: group, enqueued, completed,
              open since, idle since, work (-1: none), its sequence, baseline rate in mHz
    details   rank, group, sent and received bytes; first sequence and number of rounds (0: no timing), sum, min and
              max of T, bytes, rounds that are rooted or pairwise
    edges     link, acked, received, busy time, receive queue, send queue, backoff, retransmits, round-trip time
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..members import numbers_of
from ..model import LIVES
from . import calls, states
from .integers import Row, pack

if TYPE_CHECKING:
    from ..model import Call, Edge, Observation, Operation, ProcessGroup, Rank, Timing

TIMED, OVERFLOW = 1, 2
NONE = -1
_FRESH_SECONDS = 1.0  # a younger heartbeat is as good as one just now, and no reason to send a rank again
_COARSE = 10_000  # CPU time counts in hundredths of a second anyway
_COARSE_BYTES = 1 << 16

RANK, GROUP, DETAIL, EDGE, TRANSFER = 9, 8, 11, 9, 3  # integers of a row, without its length
GROUP_NUMBER, WORK = 0, 5  # of the integers for a process group, those that are numbers of descriptions
MAX_GROUPS = 64  # process groups of a rank
MAX_DESCRIPTIONS = 1 << 16  # of each kind; an agent with more begins again with a full report
MAX_INTEGERS = 1 << 20  # of a node, texts counted as integers.size_of does: 64 MiB
_MANY_WORKS = 1 << 10  # from which an agent begins again as well
_MAX_SECONDS = _MAX_RATE = 1e12  # so that numbers taken over once can be handed on
MAX_TEXT = 256
NO_DETAIL = (NONE, NONE, 0, 0, 0, 0, 0, 0, 0)

KINDS: Final = {
    "heads": (int, int, int, int, int, str, str),
    "groups": (str, str, int),
    "works": (str, str, int, int, int),
    "links": (int, int, str, str),
}
_ROWS: Final = ("ranks", "details", "edges", "transfers")


def to_json(report: dict[str, Any]) -> dict[str, Any]:
    """A report for a file."""
    rows = {kind: binascii.b2a_base64(report[kind], newline=False).decode() for kind in _ROWS if kind in report}
    return report | rows


def from_json(report: dict[str, Any]) -> dict[str, Any]:
    """The inverse. Raises ValueError, KeyError or TypeError for anything else."""
    return report | {kind: binascii.a2b_base64(report[kind]) for kind in _ROWS if kind in report}


class Encoder:
    """The agent's end: makes the reports of one connection. Another connection needs another encoder."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._tables: dict[str, dict[tuple[Any, ...], int]] = {kind: {} for kind in KINDS}
        self._ranks: dict[int, Row] = {}
        self._details: dict[tuple[int, int], Row] = {}
        self._edges: dict[int, Row] = {}
        self._members: dict[int, Sequence[int]] = {}  # by the number of a process group's description
        self._states: dict[int, states.RankState] = {}
        self._transfers: dict[int, Row] = {}
        self._calls: dict[int, Sequence[Call]] = {}
        self._full = True

    def report(self, observation: Observation) -> dict[str, Any]:
        """The changes since the last call, or everything in the first."""
        if any(len(table) > MAX_DESCRIPTIONS // 2 for table in self._tables.values()) or self._has_many_works():
            self._begin()
        self._new: dict[str, list[Sequence[Any]]] = {kind: [] for kind in KINDS}
        ranks = {rank.rank: self._rank(rank, observation.time) for rank in observation.ranks.values()}
        details = {key: row for rank in observation.ranks.values() for key, row in self._details_of(rank)}
        edges = {row[0]: row for row in map(self._edge, observation.edges)}
        rows = [(len(row), *row) for rank, row in ranks.items() if self._ranks.get(rank) != row]
        changed = [(*key, *row) for key, row in details.items() if self._details.get(key) != row]
        changed += [(*key, *NO_DETAIL) for key in self._details.keys() - details.keys() if key[0] in ranks]
        report: dict[str, Any] = {
            "clock": micros(observation.time),
            "full": self._full,
            **self._new,
            "ranks": pack(rows),
            "details": pack(changed),
            "edges": pack([row for link, row in edges.items() if self._edges.get(link) != row]),
            "gone": sorted(self._ranks.keys() - ranks.keys()),
            "closed": sorted(self._edges.keys() - edges.keys()),
            "members": self._new_members(observation),
            "states": self._changed_states(observation),
            "transfers": self._changed_transfers(observation),
            "calls": self._new_calls(observation),
        }
        self._ranks, self._details, self._edges, self._full = ranks, details, edges, False
        return {kind: value for kind, value in report.items() if value or kind == "clock"}

    def _has_many_works(self) -> bool:
        """Whether many operations are known, of sizes that may never come again: the analyzer goes over all of them."""
        return len(self._tables["works"]) > _MANY_WORKS

    def _new_members(self, observation: Observation) -> list[list[int]]:
        new = []
        for rank in observation.ranks.values():
            for group in rank.process_groups[:MAX_GROUPS]:
                number = self._group(group)
                if group.members and self._members.get(number) != group.members:
                    self._members[number] = group.members
                    new.append([number, *numbers_of(group.members)])
        return new

    def _changed_states(self, observation: Observation) -> list[list[Any]]:
        now, known = observation.time, self._states
        found = {each.rank: states.state_of(each, lambda age: _since(now, age)) for each in observation.ranks.values()}
        self._states = found
        return [[rank, *state] for rank, state in found.items() if state != known.get(rank, states.NO_STATE)]

    def _changed_transfers(self, observation: Observation) -> bytes:
        found, known = {}, self._transfers
        for rank in observation.ranks.values():
            both = rank.process.read_bytes, rank.process.written_bytes
            coarse = (max(nbytes // _COARSE_BYTES * _COARSE_BYTES, NONE) for nbytes in both)
            found[rank.rank] = (rank.rank, *coarse)
        self._transfers = found
        return pack([row for rank, row in found.items() if row != known.get(rank, (rank, NONE, NONE))])

    def _new_calls(self, observation: Observation) -> list[list[Any]]:
        now, known = observation.time, self._calls
        self._calls = {each.rank: each.calls for each in observation.ranks.values()}
        return [
            calls.row_of(each, _since(now, each.calls_seconds), self._work)
            for each in observation.ranks.values()
            if each.calls is not known.get(each.rank, ()) and (each.calls or known.get(each.rank))
        ]

    def _group(self, group: ProcessGroup) -> int:
        return self._number("groups", group.id, group.name[:MAX_TEXT], group.size)

    def _number(self, kind: str, *description: Any) -> int:
        table = self._tables[kind]
        number = table.get(description)
        if number is None:
            number = table[description] = len(table)
            self._new[kind].append(description)
        return number

    def _rank(self, rank: Rank, now: float) -> Row:
        process = rank.process
        texts = process.exit_reason[:MAX_TEXT], rank.phase[:MAX_TEXT]
        life = LIVES.index(process.life)
        row = [
            self._number("heads", rank.rank, rank.world_size, rank.pid, rank.generation, life, *texts),
            ord(process.state),
            micros(process.cpu_seconds) // _COARSE * _COARSE,
            micros(process.wait_seconds) // _COARSE * _COARSE,
            process.num_throttled,
            micros(process.throttled_seconds),
            _since(now, process.gone_seconds),
            NONE if rank.heartbeat_seconds < _FRESH_SECONDS else _since(now, rank.heartbeat_seconds),
            TIMED * rank.timed | OVERFLOW * rank.overflow,
        ]
        for group in rank.process_groups[:MAX_GROUPS]:
            work = group.operation
            row += (
                self._group(group),
                group.enqueued,
                group.completed,
                _since(now, group.open_seconds),
                _since(now, group.idle_seconds),
                NONE if work is None else self._work(work),
                NONE if work is None else work.sequence,
                NONE if group.baseline_rate is None else round(min(group.baseline_rate, _MAX_RATE) * 1e3),
            )
        return tuple(row)

    def _work(self, work: Operation) -> int:
        texts = work.name[:MAX_TEXT], work.dtype[:MAX_TEXT]
        return self._number("works", *texts, work.numel, work.root, work.signature)

    def _details_of(self, rank: Rank) -> Iterator[tuple[tuple[int, int], Row]]:
        for group in rank.process_groups[:MAX_GROUPS]:
            timing = group.timing
            if timing is None and group.sent_bytes < 0 and group.received_bytes < 0:
                continue
            key = rank.rank, self._group(group)
            yield key, (group.sent_bytes, group.received_bytes, *(_timing_row(timing) if timing else NO_DETAIL[2:]))

    def _edge(self, edge: Edge) -> Row:
        return (
            self._number("links", edge.rank, edge.peer, edge.local, edge.remote),
            edge.acked_bytes,
            edge.received_bytes,
            micros(edge.busy_seconds),
            edge.receive_queue,
            edge.send_queue,
            edge.backoff,
            edge.retransmits,
            micros(edge.rtt_seconds),
        )


def _timing_row(timing: Timing) -> Row:
    return (
        timing.first_sequence,
        timing.num_rounds,
        micros(timing.sum_seconds),
        micros(timing.min_seconds),
        micros(timing.max_seconds),
        timing.num_bytes,
        timing.rooted_or_pairwise,
    )


def micros(seconds: float) -> int:
    return round(min(seconds, _MAX_SECONDS) * 1e6)


def _since(now: float, age: float | None) -> int:
    return NONE if age is None else max(0, micros(now - age))
