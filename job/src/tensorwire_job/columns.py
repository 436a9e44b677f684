"""Ranks and connections in columns: an array for each field, with a place for each rank.

An analyzer looks at all ranks of a job every second, and closely at a few. Code that goes over all of them reads
columns. A :class:`Rank` or an :class:`Edge` is made when it is asked for by number. Nothing here is ever written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from .model import LIVES, SETUPS, Call, Edge, Operation, ProcessGroup, Rank

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_Columns = TypeVar("_Columns", bound="DataclassInstance")

_RUNNING, _STOPPED = LIVES.index("running"), LIVES.index("stopped")


class ColumnSource(Protocol):
    """The source of columns, which makes the objects that they describe. Places and rows are those of the columns."""

    def rank(self, place: int) -> Rank: ...

    def operations(self, rows: Ints) -> list[Operation | None]: ...

    def group(self, row: int) -> tuple[str, str, int]:
        """Id, name and size of a process group."""

    def transferred(self) -> tuple[Ints, Ints]:
        """Bytes read and written by each rank's process."""

    def setups(self) -> tuple[Ints, Floats]:
        """Where each rank is with init_process_group, and since when."""

    def with_workers(self) -> list[int]:
        """Ranks whose workers were looked at."""

    def activities(self) -> dict[int, tuple[str, float | None]]:
        """What ranks are in as their stacks show, and since when."""

    def calls(self) -> dict[int, Sequence[Call]]:
        """The last calls of each rank that has read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """A value for each rank, in the order of their numbers. Seconds are NaN where the model has None."""

    numbers: Ints
    nodes: Ints  # each node has a number
    generations: Ints
    pids: Ints
    lives: Ints  # indices into LIVES
    runnable: Bools  # the main thread has a CPU or waits for one (state R)
    overflow: Bools
    heartbeat_seconds: Floats
    gone_seconds: Floats
    cpu_seconds: Floats
    wait_seconds: Floats
    throttled_seconds: Floats
    origin: Ints  # the place in the source

    @property
    def are_alive(self) -> Bools:
        return np.logical_or(np.equal(self.lives, _RUNNING), np.equal(self.lives, _STOPPED))

    @property
    def are_stopped(self) -> Bools:
        return np.equal(self.lives, _STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memberships:
    """A row for each rank and process group. The rows of a rank stand one behind the other."""

    places: Ints
    groups: Ints  # a number for each id
    enqueued: Ints
    completed: Ints
    open_seconds: Floats
    idle_seconds: Floats
    open_sequence: Ints
    pairwise: Bools
    sending: Bools  # of those that are pairwise
    peers: Ints  # of an operation that is pairwise; else -1
    calls: Ints  # a number for what was called, its sequence number apart; 0: there is no operation
    dtypes: Ints  # a number for each dtype of an operation; 0: there is no operation
    baseline_rates: Floats
    moved: Ints  # bytes sent and received; -1 unknown
    timed_rounds: Ints  # 0: there is no timing
    timed_seconds: Floats  # T, summed over these rounds
    origin: Ints  # the row in the source

    @property
    def timed(self) -> Bools:
        return self.timed_rounds > 0


class RankColumns(Mapping[int, Rank]):
    """Ranks by number, and their columns.

    Attributes:
        places: a place for each rank, in the order of their numbers.
        rows: a row for each process group of a rank.
        exit_reasons, phases: of the ranks that have one.
        signals: seconds since the signal that asked for the end, of ranks that got one.
        node_names: by the number of the node.
    """

    def __init__(
        self,
        places: Places,
        rows: Memberships,
        source: ColumnSource,
        *,
        node_names: Sequence[str],
        exit_reasons: dict[int, str],
        phases: dict[int, str],
        signals: dict[int, float],
    ) -> None:
        self.places = places
        self.rows = rows
        self.node_names = node_names
        self.exit_reasons = exit_reasons
        self.phases = phases
        self.signals = signals
        self._source = source
        self._made: dict[int, Rank] = {}

    @classmethod
    def of(cls, ranks: Mapping[int, Rank]) -> RankColumns:
        """The columns of ranks that are there as objects."""
        return ranks if isinstance(ranks, RankColumns) else _of_objects([ranks[number] for number in sorted(ranks)])

    @property
    def numbers(self) -> Ints:
        return self.places.numbers

    @cached_property
    def place_of(self) -> dict[int, int]:
        """By the number of a rank."""
        return dict(zip(self.places.numbers.tolist(), range(len(self)), strict=True))

    def __getitem__(self, number: int) -> Rank:
        made = self._made.get(number)
        if made is None:
            place = self.places.origin[self.place_of[number]]
            made = self._made[number] = self._source.rank(int(place))
        return made

    def __iter__(self) -> Iterator[int]:
        return iter(self.place_of)

    def __len__(self) -> int:
        return len(self.places.numbers)

    def __contains__(self, number: object) -> bool:
        return number in self.place_of

    @cached_property
    def row_numbers(self) -> Ints:
        """The rank of each row."""
        return self.places.numbers[self.rows.places]

    @cached_property
    def completed(self) -> Ints:
        """Operations that the rank at each place has completed, of all its process groups."""
        found = np.zeros(len(self), dtype=np.int64)
        np.add.at(found, self.rows.places, self.rows.completed)
        return found

    @cached_property
    def transferred(self) -> tuple[Ints, Ints]:
        """Bytes read and written by the process at each place; -1 unknown."""
        read, written = self._source.transferred()
        return read[self.places.origin], written[self.places.origin]

    @cached_property
    def setups(self) -> tuple[Ints, Floats]:
        """Where the rank at each place is with init_process_group, as an index into SETUPS, and since when."""
        setups, seconds = self._source.setups()
        return setups[self.places.origin], seconds[self.places.origin]

    @cached_property
    def with_workers(self) -> list[int]:
        """Ranks whose workers were looked at."""
        return [number for number in self._source.with_workers() if number in self]

    @cached_property
    def activities(self) -> dict[int, tuple[str, float | None]]:
        """What ranks are in as their stacks show, and since when."""
        return {number: found for number, found in self._source.activities().items() if number in self}

    @cached_property
    def calls(self) -> dict[int, Sequence[Call]]:
        """The last calls of each rank that has read them."""
        return {number: calls for number, calls in self._source.calls().items() if number in self}

    def operations(self, rows: Ints) -> list[Operation | None]:
        """The operation of each of these rows."""
        return self._source.operations(self.rows.origin[rows])

    def group(self, row: int) -> tuple[str, str, int]:
        """Id, name and size of a row's process group."""
        return self._source.group(int(self.rows.origin[row]))

    def process_group(self, row: int) -> ProcessGroup:
        """A row's process group, as its rank sees it."""
        place = int(self.rows.places[row])
        first = int(np.searchsorted(self.rows.places, place))
        return self[int(self.places.numbers[place])].process_groups[row - first]

    def least(self, values: Floats) -> Floats:
        """The least of each rank's values, which are given by row; infinite where all are NaN."""
        found = np.full(len(self), np.inf)
        np.fmin.at(found, self.rows.places, values)
        return found

    def only(self, kept: Bools) -> RankColumns:
        """The ranks at these places."""
        if kept.all():
            return self
        places = taken(self.places, kept)
        rows = taken(self.rows, kept[self.rows.places])
        rows = replace(rows, places=(np.cumsum(kept) - 1)[rows.places])
        left = set(places.numbers.tolist())
        selected = RankColumns(
            places,
            rows,
            self._source,
            node_names=self.node_names,
            exit_reasons={number: text for number, text in self.exit_reasons.items() if number in left},
            phases={number: text for number, text in self.phases.items() if number in left},
            signals={number: age for number, age in self.signals.items() if number in left},
        )
        selected._made = self._made  # one object for each rank
        return selected

    def as_gone(self, ages: Mapping[int, float]) -> RankColumns:
        """The same columns, except that these ranks were last heard of so many seconds ago."""
        gone_seconds = self.places.gone_seconds.copy()
        gone_seconds[[self.place_of[number] for number in ages]] = list(ages.values())
        other = copy(self)  # nothing that is cached depends on this column
        other.places = replace(self.places, gone_seconds=gone_seconds)
        other._made = dict(self._made)
        for number, age in ages.items():
            rank = self[number]
            other._made[number] = replace(rank, process=replace(rank.process, gone_seconds=age))
        return other

    def without_signals(self, numbers: Iterable[int]) -> RankColumns:
        """The same columns, as if these ranks had got no signal."""
        other = copy(self)
        other.signals, other._made = dict(self.signals), dict(self._made)
        for number in numbers:
            del other.signals[number]
            rank = self[number]
            other._made[number] = replace(rank, process=replace(rank.process, signal="", signal_seconds=None))
        return other


def taken(columns: _Columns, kept: Bools | slice) -> _Columns:
    """A part of each column."""
    return replace(columns, **{each.name: getattr(columns, each.name)[kept] for each in fields(columns)})


class _Objects:
    """Ranks that exist as objects, as a source of columns."""

    def __init__(self, ranks: list[Rank], groups: list[ProcessGroup]) -> None:
        self._ranks = ranks
        self._groups = groups

    def rank(self, place: int) -> Rank:
        return self._ranks[place]

    def operations(self, rows: Ints) -> list[Operation | None]:
        return [self._groups[row].operation for row in rows.tolist()]

    def group(self, row: int) -> tuple[str, str, int]:
        group = self._groups[row]
        return group.id, group.name, group.size

    def setups(self) -> tuple[Ints, Floats]:
        setups = ints([SETUPS.index(rank.setup) for rank in self._ranks])
        return setups, _floats([rank.setup_seconds for rank in self._ranks])

    def with_workers(self) -> list[int]:
        return [rank.rank for rank in self._ranks if rank.process.workers]

    def activities(self) -> dict[int, tuple[str, float | None]]:
        return {rank.rank: (rank.activity, rank.activity_seconds) for rank in self._ranks if rank.activity}

    def calls(self) -> dict[int, Sequence[Call]]:
        return {rank.rank: rank.calls for rank in self._ranks if rank.calls}

    def transferred(self) -> tuple[Ints, Ints]:
        processes = [rank.process for rank in self._ranks]
        return ints([each.read_bytes for each in processes]), ints([each.written_bytes for each in processes])


def _of_objects(ranks: list[Rank]) -> RankColumns:
    processes = [rank.process for rank in ranks]
    node_names = list(dict.fromkeys(rank.node for rank in ranks))
    number_of = {name: number for number, name in enumerate(node_names)}
    groups = [group for rank in ranks for group in rank.process_groups]
    places = Places(
        numbers=ints([rank.rank for rank in ranks]),
        nodes=ints([number_of[rank.node] for rank in ranks]),
        generations=ints([rank.generation for rank in ranks]),
        pids=ints([rank.pid for rank in ranks]),
        lives=ints([LIVES.index(process.life) for process in processes]),
        runnable=_bools([process.state == "R" for process in processes]),
        overflow=_bools([rank.overflow for rank in ranks]),
        heartbeat_seconds=_floats([rank.heartbeat_seconds for rank in ranks]),
        gone_seconds=_floats([process.gone_seconds for process in processes]),
        cpu_seconds=_floats([process.cpu_seconds for process in processes]),
        wait_seconds=_floats([process.wait_seconds for process in processes]),
        throttled_seconds=_floats([process.throttled_seconds for process in processes]),
        origin=np.arange(len(ranks)),
    )
    ids: dict[str, int] = {}
    rows = Memberships(
        places=np.repeat(np.arange(len(ranks)), ints([len(rank.process_groups) for rank in ranks])),
        groups=ints([ids.setdefault(group.id, len(ids)) for group in groups]),
        enqueued=ints([group.enqueued for group in groups]),
        completed=ints([group.completed for group in groups]),
        open_seconds=_floats([group.open_seconds for group in groups]),
        idle_seconds=_floats([group.idle_seconds for group in groups]),
        open_sequence=ints([group.open_sequence for group in groups]),
        pairwise=_bools([group.is_pairwise for group in groups]),
        sending=_bools([group.operation.name == "send" if group.operation else False for group in groups]),
        peers=ints([group.operation.root if group.operation and group.is_pairwise else -1 for group in groups]),
        calls=ints([_call_of(group.operation) if group.operation else 0 for group in groups]),
        dtypes=ints([dtype_number(group.operation.dtype) if group.operation else 0 for group in groups]),
        baseline_rates=_floats([group.baseline_rate for group in groups]),
        moved=ints([group.sent_bytes + group.received_bytes if group.sent_bytes >= 0 else -1 for group in groups]),
        timed_rounds=ints([group.timing.num_rounds if group.timing else 0 for group in groups]),
        timed_seconds=_floats(
            [group.timing.sum_seconds if group.timing and group.timing.num_rounds else 0.0 for group in groups]
        ),
        origin=np.arange(len(groups)),
    )
    return RankColumns(
        places,
        rows,
        _Objects(ranks, groups),
        node_names=node_names,
        exit_reasons={rank.rank: rank.process.exit_reason for rank in ranks if rank.process.exit_reason},
        phases={rank.rank: rank.phase for rank in ranks if rank.phase},
        signals={rank.rank: rank.process.signal_seconds or 0.0 for rank in ranks if rank.process.signal},
    )


def dtype_number(dtype: str) -> int:
    """The same for the same dtype, in this process; never 0."""
    return hash(dtype) | 1


def call_number(name: str, dtype: str, numel: int, root: int, signature: int) -> int:
    """The same for the same call, in this process; never 0."""
    return hash((name, dtype, numel, root, signature)) | 1


def _call_of(operation: Operation) -> int:
    return call_number(operation.name, operation.dtype, operation.numel, operation.root, operation.signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """A value for each connection: the fields of :class:`Edge`, except those that only a reader wants."""

    ranks: Ints
    peers: Ints
    acked_bytes: Ints
    received_bytes: Ints
    busy_seconds: Floats
    receive_queue: Ints
    send_queue: Ints
    backoff: Ints
    retransmits: Ints


class EdgeColumns(Sequence[Edge]):
    """Connections, and their columns.

    Attributes:
        ends: a place for each connection.
    """

    def __init__(self, ends: Ends, make: Callable[[int], Edge]) -> None:
        self.ends = ends
        self._make = make

    @classmethod
    def of(cls, edges: Sequence[Edge]) -> EdgeColumns:
        """The columns of connections that are there as objects."""
        if isinstance(edges, EdgeColumns):
            return edges
        ends = Ends(
            ranks=ints([edge.rank for edge in edges]),
            peers=ints([edge.peer for edge in edges]),
            acked_bytes=ints([edge.acked_bytes for edge in edges]),
            received_bytes=ints([edge.received_bytes for edge in edges]),
            busy_seconds=_floats([edge.busy_seconds for edge in edges]),
            receive_queue=ints([edge.receive_queue for edge in edges]),
            send_queue=ints([edge.send_queue for edge in edges]),
            backoff=ints([edge.backoff for edge in edges]),
            retransmits=ints([edge.retransmits for edge in edges]),
        )
        return cls(ends, edges.__getitem__)

    def __len__(self) -> int:
        return len(self.ends.ranks)

    @overload
    def __getitem__(self, index: int) -> Edge: ...

    @overload
    def __getitem__(self, index: slice) -> list[Edge]: ...

    def __getitem__(self, index: int | slice) -> Edge | list[Edge]:
        if isinstance(index, slice):
            return [self._make(each) for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._make(index % len(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list


def ints(values: Sequence[int]) -> Ints:
    """Integers beyond 64 bits, which are damage, become the greatest."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([min(value, np.iinfo(np.int64).max) for value in values], dtype=np.int64)


def _floats(values: Sequence[float | None]) -> Floats:
    """None becomes NaN."""
    return np.array(values, dtype=np.float64)


def _bools(values: Sequence[bool]) -> Bools:
    return np.array(values, dtype=np.bool_)
