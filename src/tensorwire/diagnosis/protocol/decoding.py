"""The analyzer's end: a node as its reports describe it. Rows stay as they came until somebody asks what they say."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import CorruptDataError, LimitExceededError
from ..members import members_of
from ..model import LIVES, MAX_RANKS, Edge, Operation, Process, ProcessGroup, Rank, Timing
from . import encoding, states
from .encoding import DETAIL, EDGE, GROUP, GROUP_NUMBER, NO_DETAIL, NONE, OVERFLOW, RANK, TIMED, TRANSFER, WORK
from .integers import LENGTH, MAX_VALUE, NBYTES, Row, checked, in_rows, integers, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..columns import Ints

_INTEGER = np.dtype("<i8")
_MAX_UNSIGNED = 1 << 64  # of a number in a description: signatures have 64 bits


@dataclass(slots=True)
class Known:
    """What the rows of a node refer to, and what else is known of it.

    Lists only grow, and all else is replaced: whoever keeps this keeps what was known then.
    """

    heads: list[tuple[Any, ...]] = field(default_factory=list)
    groups: list[tuple[Any, ...]] = field(default_factory=list)
    works: list[tuple[Any, ...]] = field(default_factory=list)
    links: list[tuple[Any, ...]] = field(default_factory=list)
    members: dict[int, range | tuple[int, ...]] = field(default_factory=dict)
    details: dict[tuple[int, int], Row] = field(default_factory=dict)  # by rank and group
    states: dict[int, states.State] = field(default_factory=dict)
    transfers: dict[int, Row] = field(default_factory=dict)
    signalled: frozenset[int] = frozenset()  # ranks that got a signal which ends a job


class RankRows:
    """The rows of a node's ranks, one behind the other as they came.

    Most reports have a row for each rank, in the order of the last one, and name the same descriptions as that. Such
    rows are not taken apart.

    Attributes:
        data: each row with its length before it.
        lengths: of the rows, in integers.
    """

    def __init__(self) -> None:
        self._set({})

    def _set(self, rows: dict[int, bytes]) -> None:
        self.data = b"".join(rows.values())
        self.lengths = tuple(len(row) // NBYTES - 1 for row in rows.values())
        self._ranks = dict.fromkeys(rows)
        self._places = _places_of_names(self.lengths)
        self._names = np.frombuffer(self.data, _INTEGER)[self._places].tobytes()

    def __contains__(self, rank: object) -> bool:
        return rank in self._ranks

    @property
    def num_integers(self) -> int:
        return sum(self.lengths)

    def rows(self) -> dict[int, bytes]:
        """By rank."""
        found, position = {}, 0
        for rank, length in zip(self._ranks, self.lengths, strict=True):
            start, position = position, position + NBYTES * (1 + length)
            found[rank] = self.data[start:position]
        return found

    def remove(self, ranks: list[int]) -> None:
        """Raises KeyError where one is not known."""
        rows = self.rows()
        for rank in ranks:
            del rows[rank]
        self._set(rows)

    def take(self, data: bytes, known: Known) -> None:
        """Rows that were checked to be integers. Raises IndexError, ValueError or struct.error where they are wrong."""
        if len(data) == len(self.data):
            names = np.frombuffer(data, _INTEGER)[self._places].tobytes()
            if names == self._names:
                self.data = data
                return
        new: dict[int, bytes] = {}
        position = 0
        while position < len(data):
            (length,) = LENGTH.unpack_from(data, position)
            start, position = position, position + NBYTES * (1 + length)
            numbers = _names_in(length).unpack_from(data, start + NBYTES)
            _check_names(numbers, known)
            new[known.heads[numbers[0]][0]] = data[start:position]
        rows = self.rows()
        self._set(new if new.keys() >= rows.keys() else rows | new)


class Decoder:
    """A node, as the reports of one connection tell it.

    Attributes:
        clock: of the agent at the last report, in microseconds.
        edges: a row for each connection, as the protocol has it.
        num_integers: that the node takes here.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.clock = 0
        self.known = Known()
        self.rank_rows = RankRows()
        self.edges: Ints = np.zeros((0, EDGE), _INTEGER)
        self._links = b""  # of the edges
        self.num_integers = 0

    @property
    def num_described(self) -> int:
        """Descriptions that were taken over. As long as there are no more, what was made of them holds."""
        known = self.known
        return len(known.heads) + len(known.groups) + len(known.works) + len(known.links)

    def apply(self, report: dict[str, Any]) -> None:
        """Take a report over.

        Raises:
            CorruptDataError: it is no report. What was known before may be lost: drop the connection.
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
                    _describe(getattr(self.known, kind), kind, types, report[kind])
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
        if self.num_integers > encoding.MAX_INTEGERS:
            raise LimitExceededError(f"a node reports more than {encoding.MAX_INTEGERS} numbers")

    def _take_rows(self, report: dict[str, Any]) -> None:
        """Every second: of ranks, and of connections."""
        before = self.rank_rows.num_integers
        if report.get("gone"):
            self._remove(report["gone"])
        if "ranks" in report:
            self.rank_rows.take(checked(report["ranks"]), self.known)
        self.num_integers += self.rank_rows.num_integers - before
        if report.get("closed"):
            self._close(report["closed"])
        if "edges" in report:
            self._take_edges(checked(report["edges"]))

    def _remove(self, ranks: Any) -> None:
        self.rank_rows.remove(ranks)
        left = set(ranks)
        known = self.known
        details = {key: row for key, row in known.details.items() if key[0] not in left}
        self.num_integers -= DETAIL * (len(known.details) - len(details))
        self.num_integers -= sum(states.num_values(known.states.get(rank, ())) for rank in left)
        self.known = replace(
            known,
            details=details,
            states={rank: state for rank, state in known.states.items() if rank not in left},
            transfers={rank: row for rank, row in known.transfers.items() if rank not in left},
            signalled=known.signalled - left,
        )

    def _close(self, links: Any) -> None:
        closed = set(links)
        if not closed <= set(self.edges[:, 0].tolist()):
            raise KeyError
        self.edges = self.edges[~np.isin(self.edges[:, 0], list(closed))]
        self._links = self.edges[:, 0].tobytes()

    def _take_edges(self, data: bytes) -> None:
        rows = np.frombuffer(data, _INTEGER).reshape(-1, EDGE)
        links = rows[:, 0].tobytes()
        if links != self._links:
            if len(rows) and not 0 <= rows[:, 0].min() <= rows[:, 0].max() < len(self.known.links):
                raise IndexError
            if len(np.unique(rows[:, 0])) < len(rows):  # more rows than connections that were described
                raise ValueError
            both = np.concatenate([self.edges, rows])[::-1]
            _, last = np.unique(both[:, 0], return_index=True)
            if len(last) > len(rows):  # some are as they were
                rows = both[last]
                links = rows[:, 0].tobytes()
        self.edges, self._links = rows, links

    def _take_details(self, data: Any) -> None:
        details = dict(self.known.details)
        for row in in_rows(integers(checked(data)), DETAIL):
            rank, group = row[:2]
            if rank not in self.rank_rows or not 0 <= group < len(self.known.groups):
                raise IndexError
            details.pop((rank, group), None)
            if row[2:] != NO_DETAIL:
                details[rank, group] = row
        self.num_integers += DETAIL * (len(details) - len(self.known.details))
        self.known = replace(self.known, details=details)

    def _take_members(self, rows: Any) -> None:
        members = dict(self.known.members)
        for number, *numbers in rows:
            if type(number) is not int:  # there are ever more fractions
                raise TypeError
            if not 0 <= number < len(self.known.groups):
                raise IndexError
            ranks = members_of(numbers)
            self.num_integers += len(ranks) if isinstance(ranks, tuple) else 0
            if self.num_integers > encoding.MAX_INTEGERS:
                raise LimitExceededError(f"a node reports more than {encoding.MAX_INTEGERS} numbers")
            members[number] = ranks
        self.known = replace(self.known, members=members)

    def _take_states(self, rows: Any) -> None:
        found = dict(self.known.states)
        for row in rows:
            states.check(row, MAX_VALUE)
            if row[0] not in self.rank_rows:
                raise IndexError
            before, found[row[0]] = found.get(row[0], ()), tuple(row[1:])
            self.num_integers += states.num_values(found[row[0]]) - states.num_values(before)
        signalled = frozenset(rank for rank, state in found.items() if states.is_signalled(state))
        self.known = replace(self.known, states=found, signalled=signalled)

    def _take_transfers(self, data: Any) -> None:
        transfers = dict(self.known.transfers)
        for row in in_rows(integers(checked(data)), TRANSFER):
            if row[0] not in self.rank_rows or min(row) < NONE:
                raise IndexError
            transfers[row[0]] = row
        self.known = replace(self.known, transfers=transfers)

    _RARE: ClassVar = {
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
        """The connections of the node. A peer that the node does not know is for the caller to find: by `remote`."""
        for row in self.edges.tolist():
            yield edge_of(row, self.known.links[row[0]])


def _describe(table: list[tuple[Any, ...]], kind: str, types: tuple[type, ...], entries: Any) -> None:
    for entry in entries:
        if tuple(map(type, entry)) != types:
            raise TypeError
        if any(type(text) is str and len(text) > encoding.MAX_TEXT for text in entry):
            raise ValueError
        if not all(-1 <= number < _MAX_UNSIGNED for number in entry if type(number) is int):
            raise ValueError
        if kind == "heads" and not all(0 <= number <= MAX_RANKS for number in entry[:2]):
            raise ValueError
        if kind == "links" and max(entry[:2]) >= MAX_RANKS:  # ranks at both ends
            raise ValueError
        table.append(tuple(entry))
    if len(table) > encoding.MAX_DESCRIPTIONS:
        raise LimitExceededError(f"a node describes more than {encoding.MAX_DESCRIPTIONS} {kind}")


def _check_names(numbers: Row, known: Known) -> None:
    """Of descriptions: the head, then group and work by turns."""
    if not (
        0 <= numbers[0] < len(known.heads)
        and within(numbers[1::2], 0, len(known.groups))
        and within(numbers[2::2], NONE, len(known.works))
    ):
        raise IndexError


@functools.cache
def _names_in(length: int) -> struct.Struct:
    """Of a rank's row, the numbers of descriptions: its head, then group and work by turns."""
    num_groups, rest = divmod(length - RANK, GROUP)
    if rest or not 0 <= num_groups <= encoding.MAX_GROUPS:
        raise ValueError
    group = f"q{(WORK - 1) * NBYTES}xq{(GROUP - WORK - 1) * NBYTES}x"
    return struct.Struct(f"<q{(RANK - 1) * NBYTES}x" + num_groups * group)


@functools.lru_cache(maxsize=256)
def _places_of_names(lengths: tuple[int, ...]) -> Ints:
    """Among the integers of rows of these lengths, where the lengths are and the numbers of descriptions."""
    places, start = [], 0
    for length in lengths:
        places += [start, start + 1]
        for group in range(start + 1 + RANK, start + 1 + length, GROUP):
            places += [group + GROUP_NUMBER, group + WORK]
        start += 1 + length
    return np.array(places, dtype=np.intp)


def rank_of(row: Row, known: Known, node: str, now: int) -> Rank:
    """What a row says, at a time of the node's clock."""
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
    return built


def _age(now: int, at: int) -> float | None:
    return None if at < 0 else max(0, now - at) / 1e6


def _add_detail(process_group: ProcessGroup, row: Row) -> None:
    _, _, sent, received, first, num_rounds, total, low, high, num_bytes, rooted = row
    process_group.sent_bytes, process_group.received_bytes = sent, received
    if num_rounds > 0:
        process_group.timing = Timing(first, num_rounds, total / 1e6, low / 1e6, high / 1e6, num_bytes, rooted)


def edge_of(row: Sequence[int], link: tuple[int, int, str, str]) -> Edge:
    """What the row of a connection says, which is described so."""
    _, acked, received, busy, receive_queue, send_queue, backoff, retransmits, rtt = row
    rank, peer, local, remote = link
    return Edge(
        rank, peer, acked, received, busy / 1e6, receive_queue, send_queue, backoff, retransmits, rtt / 1e6,
        local, remote,
    )  # fmt: skip
