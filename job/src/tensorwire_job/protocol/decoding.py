"""The analyzer's end: a node as its reports describe it. Rows stay as they came until they are read."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from tensorwire.errors import CorruptDataError, LimitExceededError

from ..members import members_of
from ..model import LIVES, MAX_RANKS, Call, Edge, Operation, Process, ProcessGroup, Rank, Timing
from . import calls, encoding, states
from .encoding import DETAIL, GROUP, NO_DETAIL, NONE, OVERFLOW, RANK, TIMED, TRANSFER
from .integers import MAX_VALUE, Row, checked, in_rows, integers, size_of
from .node_rows import EdgeRows, RankRows

_MAX_UNSIGNED = 1 << 64  # of a number in a description: signatures have 64 bits
# The integers that one of these counts as, with its entry in a dictionary.
_DETAIL_SIZE, _TRANSFER_SIZE, _MEMBERS_SIZE = DETAIL + 2, TRANSFER + 1, 10


@dataclass(slots=True)
class Known:
    """Descriptions that the rows of a node refer to, and the facts that are not in rows.

    Lists only grow, and all else is replaced once :meth:`Decoder.snapshot` has given it away.
    """

    heads: list[tuple[Any, ...]] = field(default_factory=list)
    groups: list[tuple[Any, ...]] = field(default_factory=list)
    works: list[tuple[Any, ...]] = field(default_factory=list)
    links: list[tuple[Any, ...]] = field(default_factory=list)
    members: dict[int, Sequence[int]] = field(default_factory=dict)
    details: dict[tuple[int, int], Row] = field(default_factory=dict)  # by rank and group
    states: dict[int, states.RankState] = field(default_factory=dict)
    transfers: dict[int, Row] = field(default_factory=dict)
    calls: dict[int, tuple[int, tuple[Call, ...]]] = field(default_factory=dict)  # each with the time of its reading
    signalled: set[int] = field(default_factory=set)  # ranks that got a signal which ends a job


class Decoder:
    """A node, as the reports of one connection describe it.

    A report takes time by its own size, not by that of the node.

    Attributes:
        clock: the agent's at the last report, in microseconds.
        num_integers: that the node takes here, each of at most 64 bytes. A text counts as several, see `size_of`.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.clock = 0
        self.num_integers = 0
        self.known = Known()
        self.rank_rows = RankRows()
        self.edge_rows = EdgeRows()
        self._num_others = 0  # integers that are not in rows of ranks and connections
        self._owned: set[str] = set()  # parts of what is known that are kept here alone
        self._groups_of: dict[int, set[int]] = {}  # process groups that there are details of, by rank

    @property
    def num_described(self) -> int:
        """Descriptions that were taken over. As long as no more come, all that was made of them holds."""
        known = self.known
        return len(known.heads) + len(known.groups) + len(known.works) + len(known.links)

    def snapshot(self) -> Known:
        """All that is known now. Later reports leave it alone."""
        self._owned.clear()
        return self.known

    def _own(self, part: str) -> Any:
        """A part of what is known, for writing: a copy, if a snapshot has it."""
        if part not in self._owned:
            if not self._owned:
                self.known = replace(self.known)
            setattr(self.known, part, getattr(self.known, part).copy())
            self._owned.add(part)
        return getattr(self.known, part)

    def apply(self, report: dict[str, Any]) -> None:
        """Take a report over.

        Raises:
            CorruptDataError: it is no report. Drop the connection: what was known before may be lost.
            LimitExceededError: the node is larger than any.
        """
        try:
            if report.get("full"):
                self._begin()
            clock = report["clock"]
            if type(clock) is not int or not 0 <= clock < MAX_VALUE:
                raise TypeError
            self.clock = clock
            if not all(type(report.get(kind, [])) is list for kind in ("gone", "closed")):
                raise TypeError
            for kind, types in encoding.KINDS.items():
                if kind in report:
                    self._num_others += _describe(getattr(self.known, kind), kind, types, report[kind])
            self._take_rows(report)
            for kind, take in self._RARE.items():
                if kind in report:
                    take(self, report[kind])
        except (KeyError, IndexError, TypeError, ValueError, struct.error) as error:
            if isinstance(error, LimitExceededError):
                raise
            raise CorruptDataError(
                "expected the report of an agent", advice="run the same tensorwire everywhere"
            ) from None
        self.num_integers = self.rank_rows.num_integers + self.edge_rows.num_integers + self._num_others
        if self.num_integers > encoding.MAX_INTEGERS:
            raise LimitExceededError(f"a node reports more than {encoding.MAX_INTEGERS} numbers")

    def _take_rows(self, report: dict[str, Any]) -> None:
        """Take over the rows of ranks and connections, which come every second."""
        if report.get("gone"):
            self._remove(report["gone"])
        if "ranks" in report:
            known = self.known
            self.rank_rows.take(checked(report["ranks"]), known.heads, len(known.groups), len(known.works))
        if report.get("closed"):
            self.edge_rows.close(report["closed"])
        if "edges" in report:
            self.edge_rows.take(checked(report["edges"]), len(self.known.links))

    def _remove(self, ranks: Any) -> None:
        self.rank_rows.remove(ranks)
        known = self.known
        for rank in ranks:
            for group in self._groups_of.pop(rank, ()):
                del self._own("details")[rank, group]
                self._num_others -= _DETAIL_SIZE
            if rank in known.states:
                self._num_others -= states.num_values(self._own("states").pop(rank))
            if rank in known.transfers:
                del self._own("transfers")[rank]
                self._num_others -= _TRANSFER_SIZE
            if rank in known.calls:
                self._num_others -= calls.num_values(self._own("calls").pop(rank)[1])
            if rank in known.signalled:
                self._own("signalled").remove(rank)

    def _take_details(self, data: Any) -> None:
        details = self._own("details")
        before = len(details)
        for row in in_rows(integers(checked(data)), DETAIL):
            rank, group = row[:2]
            if rank not in self.rank_rows or not 0 <= group < len(self.known.groups):
                raise IndexError
            if row[2:] != NO_DETAIL:
                details[rank, group] = row
                self._groups_of.setdefault(rank, set()).add(group)
            elif details.pop((rank, group), None):
                self._groups_of[rank].remove(group)
        self._num_others += _DETAIL_SIZE * (len(details) - before)

    def _take_members(self, rows: Any) -> None:
        members = self._own("members")
        for number, *numbers in rows:
            if type(number) is not int:  # fractions would be ever more keys
                raise TypeError
            if not 0 <= number < len(self.known.groups):
                raise IndexError
            self._num_others += 0 if number in members else _MEMBERS_SIZE
            members[number] = members_of(numbers)

    def _take_states(self, rows: Any) -> None:
        found, signalled = self._own("states"), self._own("signalled")
        for row in rows:
            states.check(row, MAX_VALUE)
            rank, state = row[0], tuple(row[1:])
            if rank not in self.rank_rows:
                raise IndexError
            self._num_others += states.num_values(state) - states.num_values(found.get(rank, ()))
            found[rank] = state
            (signalled.add if state[states.SIGNAL] else signalled.discard)(rank)

    def _take_transfers(self, data: Any) -> None:
        transfers = self._own("transfers")
        before = len(transfers)
        for row in in_rows(integers(checked(data)), TRANSFER):
            if row[0] not in self.rank_rows or min(row) < NONE:
                raise IndexError
            transfers[row[0]] = row
        self._num_others += _TRANSFER_SIZE * (len(transfers) - before)

    def _take_calls(self, rows: Any) -> None:
        found = self._own("calls")
        for row in rows:
            calls.check(row, len(self.known.works))
            rank, read_at, ids, called = row
            if rank not in self.rank_rows:
                raise IndexError
            # Made once: a comparison of two observations sees that these are the same.
            new = calls.calls_of(ids, called, self.known.works)
            self._num_others += calls.num_values(new) - calls.num_values(found[rank][1] if rank in found else ())
            found[rank] = read_at, new

    _RARE: ClassVar = {
        "calls": _take_calls,
        "details": _take_details,
        "members": _take_members,
        "states": _take_states,
        "transfers": _take_transfers,
    }

    def ranks(self, node: str, elapsed: float) -> Iterator[Rank]:
        """The ranks of the node, `elapsed` seconds after its last report."""
        now = self.clock + encoding.micros(elapsed)
        for row in self.rank_rows.rows().values():
            yield rank_of(integers(row)[1:], self.known, node, now)

    def connections(self) -> Iterator[Edge]:
        """The connections of the node. The caller finds peers that the node does not know, by `remote`."""
        for row in self.edge_rows.all().tolist():
            yield edge_of(row, self.known.links[row[0]])


def _describe(table: list[tuple[Any, ...]], kind: str, types: tuple[type, ...], entries: Any) -> int:
    """Add descriptions; returns what they count as, in integers."""
    if len(table) + len(entries) > encoding.MAX_DESCRIPTIONS:
        raise LimitExceededError(f"a node describes more than {encoding.MAX_DESCRIPTIONS} {kind}")
    size = 0
    for entry in entries:
        if tuple(map(type, entry)) != types:
            raise TypeError
        if any(type(text) is str and len(text) > encoding.MAX_TEXT for text in entry):
            raise ValueError
        if not all(-1 <= number < _MAX_UNSIGNED for number in entry if type(number) is int):
            raise ValueError
        if kind == "heads" and not (0 <= entry[0] < MAX_RANKS and 0 <= entry[1] <= MAX_RANKS):
            raise ValueError
        if kind == "links" and max(entry[:2]) >= MAX_RANKS:  # ranks at both ends
            raise ValueError
        table.append(tuple(entry))
        size += size_of(entry)
    return size


def rank_of(row: Row, known: Known, node: str, now: int) -> Rank:
    """The rank of a row, at a time of the node's clock.

    Its parts are made by position. By name each takes three times as long, and a recording makes all of them anew.
    """
    head, state, cpu, wait, num_throttled, throttled, gone, heartbeat, flags = row[:RANK]
    rank, world_size, pid, generation, life, exit_reason, phase = known.heads[head]
    process_groups = []
    for start in range(RANK, len(row), GROUP):
        group, enqueued, completed, opened, idle, work, sequence, baseline = row[start : start + GROUP]
        identity, name, size = known.groups[group]
        process_group = ProcessGroup(
            identity,
            name,
            size,
            enqueued,
            completed,
            _age(now, opened),
            _age(now, idle),
            None if work < 0 else Operation(sequence, *known.works[work]),
            None,
            -1,
            -1,
            None if baseline < 0 else baseline / 1e3,
            known.members.get(group, ()),
        )
        if (rank, group) in known.details:
            _add_detail(process_group, known.details[rank, group])
        process_groups.append(process_group)
    process = Process(
        LIVES[life % len(LIVES)],
        chr(state & 0x7F),
        cpu / 1e6,
        wait / 1e6,
        num_throttled,
        throttled / 1e6,
        exit_reason,
        _age(now, gone),
    )
    if rank in known.transfers:
        _, process.read_bytes, process.written_bytes = known.transfers[rank]
    built = Rank(
        rank,
        world_size,
        node,
        pid,
        generation,
        process,
        process_groups,
        _age(now, heartbeat) or 0.0,
        bool(flags & TIMED),
        phase,
        bool(flags & OVERFLOW),
    )
    if rank in known.states:
        states.apply(built, known.states[rank], lambda at: _age(now, at))
    if rank in known.calls:
        read_at, built.calls = known.calls[rank]
        built.calls_seconds = _age(now, read_at)
    return built


def _age(now: int, at: int) -> float | None:
    return None if at < 0 else max(0, now - at) / 1e6


def _add_detail(process_group: ProcessGroup, row: Row) -> None:
    _, _, sent, received, first, num_rounds, total, low, high, num_bytes, rooted = row
    process_group.sent_bytes, process_group.received_bytes = sent, received
    if num_rounds > 0:
        process_group.timing = Timing(
            first_sequence=first,
            num_rounds=num_rounds,
            sum_seconds=total / 1e6,
            min_seconds=low / 1e6,
            max_seconds=high / 1e6,
            num_bytes=num_bytes,
            rooted_or_pairwise=rooted,
        )


def edge_of(row: Sequence[int], link: tuple[int, int, str, str]) -> Edge:
    """The connection of a row. `link` is its description."""
    _, acked, received, busy, receive_queue, send_queue, backoff, retransmits, rtt = row
    rank, peer, local, remote = link
    return Edge(
        rank, peer, acked, received, busy / 1e6, receive_queue, send_queue, backoff, retransmits, rtt / 1e6,
        local, remote,
    )  # fmt: skip
