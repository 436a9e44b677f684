"""The columns of ranks and connections, read in place from the rows that agents sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ..columns import EdgeColumns, Ends, Memberships, Places, RankColumns, call_number, dtype_number, ints
from ..model import LIVES, Operation
from . import states
from .decoding import edge_of, rank_of
from .encoding import EDGE, GROUP, GROUP_NUMBER, OVERFLOW, RANK, WORK

if TYPE_CHECKING:
    from ..columns import Bools, Floats, Ints
    from ..model import Call, Edge, Rank
    from .decoding import Known

# Integers of a row, and of a process group in it.
_HEAD, _STATE, _CPU, _WAIT, _THROTTLED, _GONE, _HEARTBEAT, _FLAGS = 0, 1, 2, 3, 5, 6, 7, 8
_ENQUEUED, _COMPLETED, _OPENED, _IDLE, _SEQUENCE, _RATE = 1, 2, 3, 4, 6, 7
_LETTER = 0x7F  # of the state
_MICROS = 1e6
_NO_WORK = ("", "", -1, -1, 0)
_UNKNOWN = (-1, -1, -1)  # transfers of a rank


@dataclass(frozen=True, slots=True)
class NodeRows:
    """The rows that one node sent."""

    name: str
    now: int  # microseconds of its clock
    known: Known
    ranks: bytes  # rows, each behind its length
    lengths: tuple[int, ...]  # of these
    edges: Ints  # a row for each connection


class Descriptions:
    """The descriptions of all nodes, as columns. They are made anew only where a node describes something new."""

    def __init__(self, nodes: Sequence[Known]) -> None:
        self.heads: list[tuple[Any, ...]] = list(chain.from_iterable(known.heads for known in nodes))
        self.groups: list[tuple[Any, ...]] = list(chain.from_iterable(known.groups for known in nodes))
        self.works: list[tuple[Any, ...]] = [_NO_WORK, *chain.from_iterable(known.works for known in nodes)]
        self.links: list[tuple[Any, ...]] = list(chain.from_iterable(known.links for known in nodes))
        # By node, the number of its first description, which the node itself numbers 0.
        self.first_head = _firsts([len(known.heads) for known in nodes])
        self.first_group = _firsts([len(known.groups) for known in nodes])
        self.first_work = 1 + _firsts([len(known.works) for known in nodes])
        self.first_link = _firsts([len(known.links) for known in nodes])
        self.ranks, self.world_sizes, self.pids, self.generations, lives = (
            ints([head[field] for head in self.heads]) for field in range(5)
        )
        self.lives = lives % len(LIVES)
        self.speaks = _bools(bool(head[5] or head[6]) for head in self.heads)
        ids: dict[str, int] = {}
        self.group_numbers = ints([ids.setdefault(group[0], len(ids)) for group in self.groups])
        self.pairwise = _bools(Operation(1, work[0]).is_pairwise for work in self.works)
        self.sending = _bools(work[0] == "send" for work in self.works)
        self.peers = np.where(self.pairwise, ints([work[3] for work in self.works]), -1)
        self.calls = ints([call_number(*work) for work in self.works])
        self.calls[0] = 0
        self.dtypes = ints([dtype_number(work[1]) for work in self.works])
        self.dtypes[0] = 0
        self.link_ranks = ints([link[0] for link in self.links])
        self.link_peers = ints([link[1] for link in self.links])
        # Links that may end at another node: outside any namespace, and at no rank that the node knows.
        self.between_nodes = np.flatnonzero(_bools(link[1] < 0 and "/" not in link[2] for link in self.links))


def rank_columns(nodes: Sequence[NodeRows], descriptions: Descriptions) -> tuple[RankColumns, int]:
    """The ranks of all nodes, and the size of the job that most of them tell.

    Where two nodes report a rank, the newest generation counts, or else the one that lives.
    """
    rows = _Rows(nodes, descriptions)
    numbers = rows.described(descriptions.ranks)
    order = np.argsort(numbers, kind="stable")
    if (numbers[order][1:] == numbers[order][:-1]).any():
        # A rank that was restarted elsewhere leaves a page behind. Where both are alike, the first node's counts.
        lives = rows.field(_GONE) < 0
        order = np.lexsort((-np.arange(len(numbers)), lives, rows.described(descriptions.generations), numbers))
        order = order[np.append(numbers[order][1:] != numbers[order][:-1], True)]
    sizes, counts = np.unique(rows.described(descriptions.world_sizes)[order], return_counts=True)
    return rows.columns(order), int(sizes[np.lexsort((sizes, counts))[-1]]) if len(sizes) else 0


def open_links(nodes: Sequence[NodeRows], descriptions: Descriptions) -> Ints:
    """The description of each connection."""
    first = np.repeat(descriptions.first_link, [len(node.edges) for node in nodes])
    return first + _edge_rows(nodes)[:, 0]


def edge_columns(nodes: Sequence[NodeRows], descriptions: Descriptions, links: Ints) -> EdgeColumns:
    """The connections of all nodes. `links` has the description of each."""
    rows = _edge_rows(nodes)
    peers = descriptions.link_peers[links]
    ends = Ends(
        ranks=descriptions.link_ranks[links],
        peers=peers,
        acked_bytes=rows[:, 1],
        received_bytes=rows[:, 2],
        busy_seconds=rows[:, 3] / _MICROS,
        receive_queue=rows[:, 4],
        send_queue=rows[:, 5],
        backoff=rows[:, 6],
        retransmits=rows[:, 7],
    )

    def make(place: int) -> Edge:
        edge = edge_of(tuple(rows[place].tolist()), descriptions.links[links[place]])
        edge.peer = int(peers[place])
        return edge

    return EdgeColumns(ends, make)


def _edge_rows(nodes: Sequence[NodeRows]) -> Ints:
    return np.concatenate([np.zeros((0, EDGE), np.int64), *(node.edges for node in nodes)])


class _Rows:
    """The rows of all ranks as integers, a place for each: the source of the columns."""

    def __init__(self, nodes: Sequence[NodeRows], descriptions: Descriptions) -> None:
        self._nodes = nodes
        self._descriptions = descriptions
        self._values = np.frombuffer(b"".join([node.ranks for node in nodes]), np.dtype("<i8"))
        lengths = ints(list(chain.from_iterable(node.lengths for node in nodes)))
        self._lengths = lengths
        self._starts = _firsts(1 + lengths) + 1  # behind the length
        self._node = np.repeat(np.arange(len(nodes)), [len(node.lengths) for node in nodes])
        self._now = ints([node.now for node in nodes])[self._node]
        self._heads = descriptions.first_head[self._node] + self.field(_HEAD)
        # For each process group: the place of its rank, and where its integers are.
        num_groups = (lengths - RANK) // GROUP
        self._first_group = _firsts(num_groups)
        self._place = np.repeat(np.arange(len(lengths)), num_groups)
        index = np.arange(len(self._place)) - self._first_group[self._place]
        self._group_starts = self._starts[self._place] + RANK + GROUP * index
        self._works = self._numbers_of_works()
        self._operations: dict[tuple[int, int], Operation] = {}

    def field(self, index: int) -> Ints:
        """An integer of each row."""
        return self._values[self._starts + index]

    def described(self, column: Any) -> Any:
        """A column of heads, for each row."""
        return column[self._heads]

    def columns(self, order: Ints) -> RankColumns:
        """The columns of these places, which are in the order of their ranks."""
        self._kept = order.tolist()
        heads = self._heads[order]
        speaking = [self._descriptions.heads[head] for head in heads[self._descriptions.speaks[heads]]]
        return RankColumns(
            self._places(order),
            self._memberships(order),
            self,
            node_names=[node.name for node in self._nodes],
            exit_reasons={head[0]: head[5] for head in speaking if head[5]},
            phases={head[0]: head[6] for head in speaking if head[6]},
            signals=self._signals(),
        )

    def _places(self, order: Ints) -> Places:
        descriptions, heads, now = self._descriptions, self._heads[order], self._now[order]
        heartbeat = _ages(now, self.field(_HEARTBEAT)[order])
        return Places(
            numbers=descriptions.ranks[heads],
            nodes=self._node[order],
            generations=descriptions.generations[heads],
            pids=descriptions.pids[heads],
            lives=descriptions.lives[heads],
            runnable=(self.field(_STATE)[order] & _LETTER) == ord("R"),
            overflow=(self.field(_FLAGS)[order] & OVERFLOW) != 0,
            heartbeat_seconds=np.where(np.isnan(heartbeat), 0.0, heartbeat),
            gone_seconds=_ages(now, self.field(_GONE)[order]),
            cpu_seconds=self.field(_CPU)[order] / _MICROS,
            wait_seconds=self.field(_WAIT)[order] / _MICROS,
            throttled_seconds=self.field(_THROTTLED)[order] / _MICROS,
            origin=order,
        )

    def _memberships(self, order: Ints) -> Memberships:
        num_groups = ((self._lengths - RANK) // GROUP)[order]
        places = np.repeat(np.arange(len(order)), num_groups)
        rows = self._first_group[order][places] + np.arange(len(places)) - _firsts(num_groups)[places]
        descriptions, works = self._descriptions, self._works[rows]
        starts, now = self._group_starts[rows], self._now[order][places]
        enqueued, completed, opened, idle, sequence, rate = (
            self._values[starts + field] for field in (_ENQUEUED, _COMPLETED, _OPENED, _IDLE, _SEQUENCE, _RATE)
        )
        node = self._node[order][places]
        groups = descriptions.first_group[node] + self._values[starts + GROUP_NUMBER]
        moved, timed_rounds, timed_seconds = self._details(rows)
        return Memberships(
            places=places,
            groups=descriptions.group_numbers[groups],
            enqueued=enqueued,
            completed=completed,
            open_seconds=_ages(now, opened),
            idle_seconds=_ages(now, idle),
            open_sequence=np.where((works > 0) & (sequence > 0), sequence, completed + 1),
            pairwise=descriptions.pairwise[works],
            sending=descriptions.sending[works],
            peers=descriptions.peers[works],
            calls=descriptions.calls[works],
            dtypes=descriptions.dtypes[works],
            baseline_rates=np.where(rate < 0, np.nan, rate / 1e3),
            moved=moved,
            timed_rounds=timed_rounds,
            timed_seconds=timed_seconds,
            origin=rows,
        )

    def _numbers_of_works(self) -> Ints:
        """The operation of each row, by number; 0 where there is none."""
        local = self._values[self._group_starts + WORK]
        return np.where(local < 0, 0, self._descriptions.first_work[self._node[self._place]] + local)

    def _details(self, rows: Ints) -> tuple[Ints, Ints, Floats]:
        """Bytes that were moved, rounds that were timed, and T of these. Nearly always nothing is known of them."""
        moved, rounds = np.full(len(self._place), -1), np.zeros(len(self._place), dtype=np.int64)
        seconds = np.zeros(len(self._place))
        for index, node in enumerate(self._nodes):
            if not node.known.details:
                continue
            of_node = np.flatnonzero(self._node[self._place] == index)
            ranks = self._descriptions.ranks[self._heads[self._place[of_node]]].tolist()
            groups = self._values[self._group_starts[of_node] + GROUP_NUMBER].tolist()
            for row, key in zip(of_node.tolist(), zip(ranks, groups, strict=True), strict=True):
                detail = node.known.details.get(key)
                if detail is not None:
                    sent, received, num_rounds, total = detail[2], detail[3], detail[5], detail[6]
                    moved[row] = sent + received if sent >= 0 else -1
                    if num_rounds > 0:
                        rounds[row], seconds[row] = num_rounds, total / _MICROS
        return moved[rows], rounds[rows], seconds[rows]

    def _signals(self) -> dict[int, float]:
        if not any(node.known.signalled for node in self._nodes):
            return {}
        return {rank: states.signal_age(state, now) for rank, state, now in self._having(states.SIGNAL)}

    def rank(self, place: int) -> Rank:
        start, node = int(self._starts[place]), self._nodes[self._node[place]]
        row = self._values[start : start + int(self._lengths[place])].tolist()
        return rank_of(tuple(row), node.known, node.name, node.now)

    def operations(self, rows: Ints) -> list[Operation | None]:
        works, sequences = self._works[rows], self._values[self._group_starts[rows] + _SEQUENCE]
        return list(map(self._operation, works.tolist(), sequences.tolist()))

    def _operation(self, work: int, sequence: int) -> Operation | None:
        """Ranks are in the same operations most of the time: one object does for all of them."""
        if work == 0:
            return None
        known = self._operations.get((work, sequence))
        if known is None:
            known = self._operations[work, sequence] = Operation(sequence, *self._descriptions.works[work])
        return known

    def group(self, row: int) -> tuple[str, str, int]:
        number = self._values[self._group_starts[row] + GROUP_NUMBER]
        first = self._descriptions.first_group[self._node[self._place[row]]]
        identity, name, size = self._descriptions.groups[first + number]
        return identity, name, size

    def setups(self) -> tuple[Ints, Floats]:
        setups, since = (ints([each[field] for each in self._states]) for field in (states.SETUP, states.SETUP_SINCE))
        return setups, _ages(self._now, since)

    def with_workers(self) -> list[int]:
        return [rank for rank, _, _ in self._having(states.WORKERS)]

    def activities(self) -> dict[int, tuple[str, float | None]]:
        return {rank: states.activity_of(state, now) for rank, state, now in self._having(states.ACTIVITY)}

    def calls(self) -> dict[int, Sequence[Call]]:
        read = self._known("calls", None)
        return {self._ranks[place]: read[place][1] for place in self._kept if read[place] and read[place][1]}

    @cached_property
    def _ranks(self) -> list[int]:
        ranks: list[int] = self.described(self._descriptions.ranks).tolist()
        return ranks

    @cached_property
    def _states(self) -> list[states.RankState]:
        return self._known("states", states.NO_STATE)

    def _known(self, what: str, otherwise: Any) -> list[Any]:
        """What the node of each place knows of its rank."""
        of_nodes = [getattr(node.known, what) for node in self._nodes]
        places = zip(self._ranks, self._node.tolist(), strict=True)
        return [of_nodes[node].get(rank, otherwise) for rank, node in places]

    def _having(self, field: int) -> list[tuple[int, states.RankState, int]]:
        """The states that have something there, each with its rank and the time of its node. A rank of two nodes comes
        where it counts."""
        having = [place for place in self._kept if self._states[place][field]]
        return [(self._ranks[place], self._states[place], int(self._now[place])) for place in having]

    def transferred(self) -> tuple[Ints, Ints]:
        found = self._known("transfers", _UNKNOWN)
        return ints([read for _, read, _ in found]), ints([written for _, _, written in found])


def _firsts(counts: Any) -> Ints:
    """Where parts of these lengths begin, one behind the other."""
    ends = np.cumsum(counts, dtype=np.int64)
    return ends - np.asarray(counts, dtype=np.int64)


def _ages(now: Ints, at: Ints) -> Floats:
    """Seconds since these times; NaN where there is none."""
    return np.where(at < 0, np.nan, np.maximum(now - at, 0) / _MICROS)


def _bools(values: Iterable[bool]) -> Bools:
    return np.array(list(values), dtype=np.bool_)
