"""The rival of our encoding of reports: the same messages as arrays of msgspec in MessagePack.

It checks what our own decoder checks: types, lengths and ranges by declaration, and the bytes that are kept of a node.
An age is sent as an instant on the agent's clock, so that a rank for which only time passes is not sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from tensorwire.errors import CorruptDataError, LimitExceededError
from tensorwire_job.model import MAX_RANKS, Edge, Life, Operation, Process, ProcessGroup, Rank, Timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorwire_job.model import Observation

_MAX_NBYTES = 8 << 20  # of a node: what it has reported and not replaced or taken back, as it was sent
_MAX_GROUPS = 64  # process groups of a rank
_FRESH_SECONDS = 1.0  # a younger heartbeat is as good as one just now: no reason to send a rank again

_Number = Annotated[int, Meta(ge=-1, le=(1 << 62) - 1)]  # -1: unknown
_RankNumber = Annotated[int, Meta(ge=0, le=MAX_RANKS)]
_Instant = Annotated[int, Meta(ge=0, le=(1 << 62) - 1)]
_Positive = Annotated[float, Meta(ge=0.0, le=1e12)]  # a NaN is not
_Text = Annotated[str, Meta(max_length=256)]


class _Array(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """An array on the wire that has exactly these fields."""


class _Operation(_Array):
    sequence: _Number
    name: _Text
    dtype: _Text
    numel: _Number
    root: _Number
    signature: Annotated[int, Meta(ge=0)]  # an integer of MessagePack has at most 64 bits


class _Timing(_Array):
    first_sequence: _Number
    num_rounds: _Number
    sum_seconds: _Positive
    min_seconds: _Positive
    max_seconds: _Positive
    num_bytes: _Number
    rooted_or_pairwise: _Number


class _ProcessGroup(_Array):
    id: _Text
    name: _Text
    size: _Number
    enqueued: _Number
    completed: _Number
    open_since: _Instant | None
    idle_since: _Instant | None
    operation: _Operation | None
    timing: _Timing | None
    sent_bytes: _Number
    received_bytes: _Number
    baseline_rate: _Positive | None


class _Process(_Array):
    life: Life
    state: Annotated[str, Meta(min_length=1, max_length=1)]
    cpu_seconds: _Positive
    wait_seconds: _Positive
    num_throttled: _Number
    throttled_seconds: _Positive
    exit_reason: _Text
    gone_since: _Instant | None


class _Rank(_Array):
    rank: _RankNumber
    world_size: _RankNumber
    pid: _Number
    generation: _Number
    process: _Process
    process_groups: Annotated[list[_ProcessGroup], Meta(max_length=_MAX_GROUPS)]
    heartbeat_at: _Instant | None  # None: just now
    timed: bool
    phase: _Text
    overflow: bool


class _Edge(_Array):
    rank: _Number
    peer: _Number
    acked_bytes: _Number
    received_bytes: _Number
    busy_seconds: _Positive
    receive_queue: _Number
    send_queue: _Number
    backoff: _Number
    retransmits: _Number
    rtt_seconds: _Positive
    local: _Text
    remote: _Text


_Ends = tuple[int, int, str, str]  # of a connection: rank, peer, local, remote


class _Report(_Array):
    clock: _Instant
    full: bool  # forget the reports before this one
    ranks: list[msgspec.Raw]  # each a _Rank, that changed
    gone: list[int]  # ranks that are no more
    edges: list[msgspec.Raw]  # each an _Edge, that changed
    closed: list[_Ends]  # connections that are no more


_PACKER: Final = msgspec.msgpack.Encoder()
_REPORT: Final = msgspec.msgpack.Decoder(_Report)
_RANK: Final = msgspec.msgpack.Decoder(_Rank)
_EDGE: Final = msgspec.msgpack.Decoder(_Edge)


class Encoder:
    """The agent's end: makes the reports of one connection. Another connection needs another encoder."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._edges: dict[_Ends, _Edge] = {}
        self._full = True

    def report(self, observation: Observation) -> bytes:
        """The changes since the last call, or everything in the first."""
        clock = _micros(observation.time)
        ranks = {number: _to_wire(rank, clock) for number, rank in observation.ranks.items()}
        edges = {_ends(edge): edge for edge in map(_edge_to_wire, observation.edges)}
        changed = [rank for number, rank in ranks.items() if self._ranks.get(number) != rank]
        moved = [edge for ends, edge in edges.items() if self._edges.get(ends) != edge]
        gone, closed = sorted(self._ranks.keys() - ranks.keys()), sorted(self._edges.keys() - edges.keys())
        report = _PACKER.encode((clock, self._full, changed, gone, moved, closed))
        self._ranks, self._edges, self._full = ranks, edges, False
        return report


class Decoder:
    """The analyzer's end: a node as its reports describe it.

    Attributes:
        nbytes: how much of the reports is kept, as it was sent.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._clock = 0
        self._ranks: dict[int, tuple[int, _Rank]] = {}  # each with its number of bytes
        self._edges: dict[_Ends, tuple[int, _Edge]] = {}
        self.nbytes = 0

    def apply(self, report: bytes) -> None:
        """Take a report over.

        Raises:
            CorruptDataError: it is no report. What was known before may be lost: drop the connection.
            LimitExceededError: the node is larger than any.
        """
        try:
            self._apply(_REPORT.decode(report))
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError):
            raise CorruptDataError(
                "expected the report of an agent", advice="run the same tensorwire everywhere"
            ) from None
        if self.nbytes > _MAX_NBYTES:
            raise LimitExceededError(f"a node reports more than {_MAX_NBYTES} bytes")

    def _apply(self, report: _Report) -> None:
        if report.full:
            self._begin()
        self._clock = report.clock
        for number in report.gone:
            self.nbytes -= self._ranks.pop(number)[0]
        for ends in report.closed:
            self.nbytes -= self._edges.pop(ends)[0]
        for raw in report.ranks:
            rank = _RANK.decode(raw)
            self._keep(self._ranks, rank.rank, raw, rank)
        for raw in report.edges:
            edge = _EDGE.decode(raw)
            self._keep(self._edges, _ends(edge), raw, edge)

    def _keep(self, table: dict[Any, tuple[int, Any]], key: object, raw: msgspec.Raw, entry: object) -> None:
        nbytes = memoryview(raw).nbytes
        self.nbytes += nbytes - table.get(key, (0,))[0]
        table[key] = nbytes, entry

    def ranks(self, node: str, elapsed: float) -> Iterator[Rank]:
        """The ranks of the node, `elapsed` seconds after its last report."""
        clock = self._clock + _micros(elapsed)
        for _, kept in self._ranks.values():
            yield _from_wire(kept, node, clock)

    def edges(self) -> Iterator[Edge]:
        """The connections of the node. A peer that the node does not know is for the caller to find: by `remote`."""
        for _, kept in self._edges.values():
            yield Edge(*astuple(kept))


def _to_wire(rank: Rank, clock: int) -> _Rank:
    process = rank.process
    return _Rank(
        rank.rank, rank.world_size, rank.pid, rank.generation,
        _Process(
            process.life, process.state, _hundredths(process.cpu_seconds), _hundredths(process.wait_seconds),
            process.num_throttled, process.throttled_seconds, process.exit_reason,
            _instant(process.gone_seconds, clock),
        ),
        [
            _ProcessGroup(
                group.id, group.name, group.size, group.enqueued, group.completed,
                _instant(group.open_seconds, clock), _instant(group.idle_seconds, clock),
                None if (last := group.operation) is None
                else _Operation(last.sequence, last.name, last.dtype, last.numel, last.root, last.signature),
                None if (timing := group.timing) is None
                else _Timing(
                    timing.first_sequence, timing.num_rounds, timing.sum_seconds, timing.min_seconds,
                    timing.max_seconds, timing.num_bytes, timing.rooted_or_pairwise,
                ),
                group.sent_bytes, group.received_bytes, group.baseline_rate,
            )
            for group in rank.process_groups[:_MAX_GROUPS]
        ],
        None if rank.heartbeat_seconds < _FRESH_SECONDS else _instant(rank.heartbeat_seconds, clock),
        rank.timed, rank.phase, rank.overflow,
    )  # fmt: skip


def _from_wire(wire: _Rank, node: str, clock: int) -> Rank:
    process = wire.process
    return Rank(
        wire.rank, wire.world_size, node, wire.pid, wire.generation,
        Process(
            process.life, process.state, process.cpu_seconds, process.wait_seconds, process.num_throttled,
            process.throttled_seconds, process.exit_reason, _age(process.gone_since, clock),
        ),
        [
            ProcessGroup(
                group.id, group.name, group.size, group.enqueued, group.completed,
                _age(group.open_since, clock), _age(group.idle_since, clock),
                None if group.operation is None else Operation(*astuple(group.operation)),
                None if group.timing is None else Timing(*astuple(group.timing)),
                group.sent_bytes, group.received_bytes, group.baseline_rate,
            )
            for group in wire.process_groups
        ],
        _age(wire.heartbeat_at, clock) or 0.0, wire.timed, wire.phase, wire.overflow,
    )  # fmt: skip


def _edge_to_wire(edge: Edge) -> _Edge:
    return _Edge(
        edge.rank, edge.peer, edge.acked_bytes, edge.received_bytes, edge.busy_seconds, edge.receive_queue,
        edge.send_queue, edge.backoff, edge.retransmits, edge.rtt_seconds, edge.local, edge.remote,
    )  # fmt: skip


def _ends(edge: _Edge) -> _Ends:
    return edge.rank, edge.peer, edge.local, edge.remote


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def _instant(age: float | None, clock: int) -> int | None:
    return None if age is None else max(0, clock - round(age * 1e6))


def _age(instant: int | None, clock: int) -> float | None:
    return None if instant is None else max(0, clock - instant) / 1e6


def _hundredths(seconds: float) -> float:
    """CPU time is counted in these; a rank that idles must not differ by less."""
    return _micros(seconds) // 10_000 / 100
