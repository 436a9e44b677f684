"""What an agent sends of its node: only what changed since its last report, in numbers that are quick to read.

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
    states    what changes now and then, of ranks of which it did: [rank, exit kind, exit at, signal, signal at, setup,
              set up at, activity, active since, workers], each worker [pid, name, state, wait channel,
              CPU time in tenths of a second]
    transfers a row for each rank that read or wrote some: rank, bytes read, bytes written

The last three are left out where they are empty.

Descriptions and connections are numbered as they come, from 0, and rows name them by number. Rows are 64-bit integers,
little-endian: numerals would take most of the analyzer's time. Times are in microseconds; -1 is for none. In files,
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
import functools
import struct
from typing import TYPE_CHECKING, Any, Final, get_args

from ...errors import CorruptDataError, LimitExceededError
from ..members import members_of, numbers_of
from ..model import MAX_RANKS, Edge, Life, Operation, Process, ProcessGroup, Rank, Timing
from . import states
from .integers import LENGTH, MAX_VALUE, NBYTES, Row, checked, in_rows, integers, pack, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..model import Observation

_LIVES: Final[tuple[Life, ...]] = get_args(Life)
_TIMED, _OVERFLOW = 1, 2
_NONE = -1
_FRESH_SECONDS = 1.0  # a younger heartbeat is as good as one just now: no reason to send a rank again
_COARSE = 10_000  # CPU time counts in hundredths of a second anyway
_COARSE_BYTES = 1 << 16

_RANK, _GROUP, _DETAIL, _EDGE, _TRANSFER = 9, 8, 11, 9, 3  # integers of a row, without its length
_MAX_GROUPS = 64  # process groups of a rank
_MAX_DESCRIPTIONS = 1 << 16  # of each kind; an agent with more begins again with a full report
_MAX_INTEGERS = 1 << 20  # in the rows and details of the ranks of a node
_MAX_UNSIGNED = 1 << 64  # of a number in a description: signatures have 64 bits
_MAX_SECONDS = _MAX_RATE = 1e12  # and so are these; what was taken over once can be handed on
_MAX_TEXT = 256
_NO_DETAIL = (_NONE, _NONE, 0, 0, 0, 0, 0, 0, 0)

_KINDS: Final = {
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
    """The inverse. Of what is none it raises ValueError, KeyError or TypeError."""
    return report | {kind: binascii.a2b_base64(report[kind]) for kind in _ROWS if kind in report}


class Encoder:
    """The agent's end: makes the reports of one connection. Another connection needs another encoder."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._tables: dict[str, dict[tuple[Any, ...], int]] = {kind: {} for kind in _KINDS}
        self._ranks: dict[int, Row] = {}
        self._details: dict[tuple[int, int], Row] = {}
        self._edges: dict[int, Row] = {}
        self._members: dict[int, range | tuple[int, ...]] = {}  # by the number of a process group's description
        self._states: dict[int, states.State] = {}
        self._transfers: dict[int, Row] = {}
        self._full = True

    def report(self, observation: Observation) -> dict[str, Any]:
        """The changes since the last call, or everything in the first."""
        if any(len(table) > _MAX_DESCRIPTIONS // 2 for table in self._tables.values()):
            self._begin()
        self._new: dict[str, list[Sequence[Any]]] = {kind: [] for kind in _KINDS}
        ranks = {rank.rank: self._rank(rank, observation.time) for rank in observation.ranks.values()}
        details = {key: row for rank in observation.ranks.values() for key, row in self._details_of(rank)}
        edges = {row[0]: row for row in map(self._edge, observation.edges)}
        rows = [(len(row), *row) for rank, row in ranks.items() if self._ranks.get(rank) != row]
        changed = [(*key, *row) for key, row in details.items() if self._details.get(key) != row]
        changed += [(*key, *_NO_DETAIL) for key in self._details.keys() - details.keys() if key[0] in ranks]
        report: dict[str, Any] = {
            "clock": _micros(observation.time),
            "full": self._full,
            **self._new,
            "ranks": pack(rows),
            "details": pack(changed),
            "edges": pack([row for link, row in edges.items() if self._edges.get(link) != row]),
            "gone": sorted(self._ranks.keys() - ranks.keys()),
            "closed": sorted(self._edges.keys() - edges.keys()),
        }
        more = {
            "members": self._new_members(observation),
            "states": self._changed_states(observation),
            "transfers": self._changed_transfers(observation),
        }
        self._ranks, self._details, self._edges, self._full = ranks, details, edges, False
        return report | {kind: value for kind, value in more.items() if value}

    def _new_members(self, observation: Observation) -> list[list[int]]:
        new = []
        for rank in observation.ranks.values():
            for group in rank.process_groups[:_MAX_GROUPS]:
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
            coarse = (max(nbytes // _COARSE_BYTES * _COARSE_BYTES, _NONE) for nbytes in both)
            found[rank.rank] = (rank.rank, *coarse)
        self._transfers = found
        return pack([row for rank, row in found.items() if row != known.get(rank, (rank, _NONE, _NONE))])

    def _group(self, group: ProcessGroup) -> int:
        return self._number("groups", group.id, group.name[:_MAX_TEXT], group.size)

    def _number(self, kind: str, *description: Any) -> int:
        table = self._tables[kind]
        number = table.get(description)
        if number is None:
            number = table[description] = len(table)
            self._new[kind].append(description)
        return number

    def _rank(self, rank: Rank, now: float) -> Row:
        process = rank.process
        texts = process.exit_reason[:_MAX_TEXT], rank.phase[:_MAX_TEXT]
        life = _LIVES.index(process.life)
        row = [
            self._number("heads", rank.rank, rank.world_size, rank.pid, rank.generation, life, *texts),
            ord(process.state),
            _micros(process.cpu_seconds) // _COARSE * _COARSE,
            _micros(process.wait_seconds) // _COARSE * _COARSE,
            process.num_throttled,
            _micros(process.throttled_seconds),
            _since(now, process.gone_seconds),
            _NONE if rank.heartbeat_seconds < _FRESH_SECONDS else _since(now, rank.heartbeat_seconds),
            _TIMED * rank.timed | _OVERFLOW * rank.overflow,
        ]
        for group in rank.process_groups[:_MAX_GROUPS]:
            work = group.operation
            row += (
                self._group(group),
                group.enqueued,
                group.completed,
                _since(now, group.open_seconds),
                _since(now, group.idle_seconds),
                _NONE if work is None else self._work(work),
                _NONE if work is None else work.sequence,
                _NONE if group.baseline_rate is None else round(min(group.baseline_rate, _MAX_RATE) * 1e3),
            )
        return tuple(row)

    def _work(self, work: Operation) -> int:
        texts = work.name[:_MAX_TEXT], work.dtype[:_MAX_TEXT]
        return self._number("works", *texts, work.numel, work.root, work.signature)

    def _details_of(self, rank: Rank) -> Iterator[tuple[tuple[int, int], Row]]:
        for group in rank.process_groups[:_MAX_GROUPS]:
            timing = group.timing
            if timing is None and group.sent_bytes < 0 and group.received_bytes < 0:
                continue
            key = rank.rank, self._group(group)
            yield key, (group.sent_bytes, group.received_bytes, *(_timing_row(timing) if timing else _NO_DETAIL[2:]))

    def _edge(self, edge: Edge) -> Row:
        return (
            self._number("links", edge.rank, edge.peer, edge.local, edge.remote),
            edge.acked_bytes,
            edge.received_bytes,
            _micros(edge.busy_seconds),
            edge.receive_queue,
            edge.send_queue,
            edge.backoff,
            edge.retransmits,
            _micros(edge.rtt_seconds),
        )


class Decoder:
    """The analyzer's end: a node as its reports describe it."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._clock = 0
        self._tables: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in _KINDS}
        self._ranks: dict[int, tuple[Row, bytes]] = {}  # numbers of descriptions, and the row as it came
        self._details: dict[int, dict[int, Row]] = {}
        self._edges: dict[int, Row] = {}
        self._members: dict[int, range | tuple[int, ...]] = {}
        self._states: dict[int, states.State] = {}
        self._transfers: dict[int, Row] = {}
        self._operations: dict[tuple[int, int], Operation] = {}  # of the present call of `ranks`
        self.num_integers = 0

    def apply(self, report: dict[str, Any]) -> None:
        """Take a report over.

        Raises:
            CorruptDataError: it is no report. What was known before may be lost: drop the connection.
            LimitExceededError: the node is larger than any.
        """
        try:
            if report["full"]:
                self._begin()
            clock = report["clock"]
            if type(clock) is not int or not 0 <= clock < MAX_VALUE:
                raise TypeError
            self._clock = clock
            self._describe(report)
            for rank in report["gone"]:
                self.num_integers -= len(self._ranks.pop(rank)[1]) // NBYTES
                self.num_integers -= sum(map(len, self._details.pop(rank, {}).values()))
                self._states.pop(rank, None)
                self._transfers.pop(rank, None)
            for link in report["closed"]:
                del self._edges[link]
            self._take_ranks(checked(report["ranks"]))
            self._take_details(integers(checked(report["details"])))
            self._take_edges(integers(checked(report["edges"])))
            self._take_members(report.get("members", []))
            self._take_states(report.get("states", []))
            self._take_transfers(integers(checked(report.get("transfers", b""))))
        except (KeyError, IndexError, TypeError, ValueError, struct.error) as error:
            if isinstance(error, LimitExceededError):
                raise
            raise CorruptDataError(
                "expected the report of an agent", advice="run the same tensorwire everywhere"
            ) from None
        if self.num_integers > _MAX_INTEGERS:
            raise LimitExceededError(f"a node reports more than {_MAX_INTEGERS} numbers")

    def _describe(self, report: dict[str, Any]) -> None:
        for kind, types in _KINDS.items():
            table = self._tables[kind]
            for entry in report[kind]:
                if tuple(map(type, entry)) != types:
                    raise TypeError
                if any(type(text) is str and len(text) > _MAX_TEXT for text in entry):
                    raise ValueError
                if not all(-1 <= number < _MAX_UNSIGNED for number in entry if type(number) is int):
                    raise ValueError
                if kind == "heads" and not all(0 <= number <= MAX_RANKS for number in entry[:2]):
                    raise ValueError
                table.append(tuple(entry))
            if len(table) > _MAX_DESCRIPTIONS:
                raise LimitExceededError(f"a node describes more than {_MAX_DESCRIPTIONS} {kind}")

    def _take_ranks(self, data: bytes) -> None:
        """This runs for every rank every second, far more often than anyone looks: only what counts is taken apart."""
        heads, ranks = self._tables["heads"], self._ranks
        position = 0
        while position < len(data):
            (length,) = LENGTH.unpack_from(data, position)
            start, position = position + NBYTES, position + NBYTES * (1 + length)
            numbers = _numbers_in(length).unpack_from(data, start)
            if not 0 <= numbers[0] < len(heads):
                raise IndexError
            rank = heads[numbers[0]][0]
            known = ranks.get(rank)
            if known is None or known[0] != numbers:
                self._check_numbers(numbers)
                self.num_integers += length - (len(known[1]) // NBYTES if known else 0)
            ranks[rank] = numbers, data[start:position]

    def _check_numbers(self, numbers: Row) -> None:
        num_groups, num_works = len(self._tables["groups"]), len(self._tables["works"])
        if not (within(numbers[1::2], 0, num_groups) and within(numbers[2::2], _NONE, num_works)):
            raise IndexError

    def _take_details(self, values: Row) -> None:
        for row in in_rows(values, _DETAIL):
            rank, group = row[:2]
            if rank not in self._ranks or not 0 <= group < len(self._tables["groups"]):
                raise IndexError
            of_rank = self._details.setdefault(rank, {})
            self.num_integers -= len(of_rank.pop(group, ()))
            if row[2:] != _NO_DETAIL:
                self.num_integers += _DETAIL
                of_rank[group] = row

    def _take_edges(self, values: Row) -> None:
        for row in in_rows(values, _EDGE):
            if not 0 <= row[0] < len(self._tables["links"]):
                raise IndexError
            self._edges[row[0]] = row

    def _take_members(self, rows: Any) -> None:
        for number, *numbers in rows:
            if not 0 <= number < len(self._tables["groups"]):
                raise IndexError
            members = members_of(numbers)
            self.num_integers += len(members) if isinstance(members, tuple) else 0
            if self.num_integers > _MAX_INTEGERS:
                raise LimitExceededError(f"a node reports more than {_MAX_INTEGERS} numbers")
            self._members[number] = members

    def _take_states(self, rows: Any) -> None:
        for row in rows:
            states.check(row, MAX_VALUE)
            if row[0] not in self._ranks:
                raise IndexError
            self._states[row[0]] = tuple(row[1:])

    def _take_transfers(self, values: Row) -> None:
        for row in in_rows(values, _TRANSFER):
            if row[0] not in self._ranks or min(row) < _NONE:
                raise IndexError
            self._transfers[row[0]] = row

    def ranks(self, node: str, elapsed: float) -> Iterator[Rank]:
        """The ranks of the node, `elapsed` seconds after its last report."""
        now = self._clock + _micros(elapsed)
        self._operations.clear()
        for _, row in self._ranks.values():
            yield self._build(integers(row), node, now)

    def edges(self) -> Iterator[Edge]:
        """The connections of the node. A peer that the node does not know is for the caller to find: by `remote`."""
        links = self._tables["links"]
        for link, acked, received, busy, receive_queue, send_queue, backoff, retransmits, rtt in self._edges.values():
            rank, peer, local, remote = links[link]
            yield Edge(
                rank, peer, acked, received, busy / 1e6, receive_queue, send_queue, backoff, retransmits, rtt / 1e6,
                local, remote,
            )  # fmt: skip

    def _operation(self, work: int, sequence: int) -> Operation:
        """Ranks of a node are in the same operations most of the time: one object does for all of them."""
        operation = self._operations.get((work, sequence))
        if operation is None:
            operation = self._operations[work, sequence] = Operation(sequence, *self._tables["works"][work])
        return operation

    def _build(self, row: Row, node: str, now: int) -> Rank:
        head, state, cpu, wait, num_throttled, throttled, gone, heartbeat, flags = row[:_RANK]
        rank, world_size, pid, generation, life, exit_reason, phase = self._tables["heads"][head]
        details = self._details.get(rank)
        groups = self._tables["groups"]
        process_groups = []
        for start in range(_RANK, len(row), _GROUP):
            group, enqueued, completed, opened, idle, work, sequence, baseline = row[start : start + _GROUP]
            identity, name, size = groups[group]
            process_group = ProcessGroup(
                identity,
                name,
                size,
                enqueued,
                completed,
                None if opened < 0 else max(0, now - opened) / 1e6,
                None if idle < 0 else max(0, now - idle) / 1e6,
                None if work < 0 else self._operation(work, sequence),
                None,
                -1,
                -1,
                None if baseline < 0 else baseline / 1e3,
                self._members.get(group, ()),
            )
            if details and group in details:
                _add_detail(process_group, details[group])
            process_groups.append(process_group)
        process = Process(
            _LIVES[life % len(_LIVES)],
            chr(state & 0x7F),
            cpu / 1e6,
            wait / 1e6,
            num_throttled,
            throttled / 1e6,
            exit_reason,
            None if gone < 0 else max(0, now - gone) / 1e6,
        )
        if rank in self._transfers:
            _, process.read_bytes, process.written_bytes = self._transfers[rank]
        built = Rank(
            rank,
            world_size,
            node,
            pid,
            generation,
            process,
            process_groups,
            0.0 if heartbeat < 0 else max(0, now - heartbeat) / 1e6,
            bool(flags & _TIMED),
            phase,
            bool(flags & _OVERFLOW),
        )
        if rank in self._states:
            states.apply(built, self._states[rank], lambda at: None if at < 0 else max(0, now - at) / 1e6)
        return built


def _timing_row(timing: Timing) -> Row:
    return (
        timing.first_sequence,
        timing.num_rounds,
        _micros(timing.sum_seconds),
        _micros(timing.min_seconds),
        _micros(timing.max_seconds),
        timing.num_bytes,
        timing.rooted_or_pairwise,
    )


def _add_detail(process_group: ProcessGroup, row: Row) -> None:
    _, _, sent, received, first, num_rounds, total, low, high, num_bytes, rooted = row
    process_group.sent_bytes, process_group.received_bytes = sent, received
    if num_rounds > 0:
        process_group.timing = Timing(first, num_rounds, total / 1e6, low / 1e6, high / 1e6, num_bytes, rooted)


def _micros(seconds: float) -> int:
    return round(min(seconds, _MAX_SECONDS) * 1e6)


def _since(now: float, age: float | None) -> int:
    return _NONE if age is None else max(0, _micros(now - age))


@functools.cache
def _numbers_in(length: int) -> struct.Struct:
    """Of a rank's row, the numbers of descriptions: its head, then group and work by turns."""
    num_groups, rest = divmod(length - _RANK, _GROUP)
    if rest or not 0 <= num_groups <= _MAX_GROUPS:
        raise ValueError
    group = f"q{4 * NBYTES}xq{(_GROUP - 6) * NBYTES}x"
    return struct.Struct(f"<q{(_RANK - 1) * NBYTES}x" + num_groups * group)
