"""What flows between ranks: the connections of each pair together, now or since an earlier time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ...columns import Bools, EdgeColumns, Floats, Ints
    from ...columns import Ends as Columns

Ends = tuple[int, int]

_SHIFT = 32  # bits for a rank, where two make one number


@dataclass(slots=True)
class Flow:
    """One direction between two ranks, all connections together, since an earlier sample."""

    acked_bytes: int = 0
    received_bytes: int = 0
    busy_seconds: float = 0.0
    retransmits: int = 0
    receive_queue: int = 0  # now
    send_queue: int = 0
    backoff: int = 0
    share: float = 0.0  # of the time, with data in flight


@dataclass(frozen=True, slots=True)
class Flows:
    """The fields of :class:`Flow` in columns, with a place for each pair of ranks."""

    senders: Ints
    receivers: Ints
    acked_bytes: Ints
    received_bytes: Ints
    busy_seconds: Floats
    retransmits: Ints
    receive_queue: Ints
    send_queue: Ints
    backoff: Ints
    shares: Floats

    def __len__(self) -> int:
        return len(self.senders)

    def where(self, wanted: Bools) -> dict[Ends, Flow]:
        """Some of them, by sender and receiver."""
        columns = (
            self.acked_bytes, self.received_bytes, self.busy_seconds, self.retransmits, self.receive_queue,
            self.send_queue, self.backoff, self.shares,
        )  # fmt: skip
        ends = zip(self.senders[wanted].tolist(), self.receivers[wanted].tolist(), strict=True)
        fields = zip(*(column[wanted].tolist() for column in columns), strict=True)
        return {pair: Flow(*values) for pair, values in zip(ends, fields, strict=True)}


def flows_between(ranks: Collection[int], edges: EdgeColumns, earlier: EdgeColumns | None, seconds: float) -> Flows:
    """Between these ranks: counters since `earlier`, which is so many seconds ago, if that is given."""
    members = np.fromiter(ranks, dtype=np.int64, count=len(ranks))
    pairs, counted, ends = _pairs(members, edges)
    keys, index = np.unique(pairs, return_inverse=True)

    def total(column: Ints) -> Ints:
        found = np.zeros(len(keys), dtype=np.int64)
        np.add.at(found, index, column[counted])
        return found

    acked, received, retransmits = (total(c) for c in (ends.acked_bytes, ends.received_bytes, ends.retransmits))
    busy = np.zeros(len(keys))
    np.add.at(busy, index, ends.busy_seconds[counted])
    backoff = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(backoff, index, ends.backoff[counted])
    shares = np.zeros(len(keys))
    if earlier is not None and len(keys):
        pairs, counted_then, then = _pairs(members, earlier)
        place = np.minimum(np.searchsorted(keys, pairs), len(keys) - 1)
        known = keys[place] == pairs
        place, rows = place[known], np.flatnonzero(counted_then)[known]
        for column, before in (
            (acked, then.acked_bytes), (received, then.received_bytes), (retransmits, then.retransmits),
            (busy, then.busy_seconds),
        ):  # fmt: skip
            np.subtract.at(column, place, before[rows])
        if seconds > 0:
            shares[place] = busy[place] / seconds
    return Flows(
        senders=keys >> _SHIFT,
        receivers=keys & ((1 << _SHIFT) - 1),
        acked_bytes=acked,
        received_bytes=received,
        busy_seconds=busy,
        retransmits=retransmits,
        receive_queue=total(ends.receive_queue),
        send_queue=total(ends.send_queue),
        backoff=backoff,
        shares=shares,
    )


def _pairs(members: Ints, edges: EdgeColumns) -> tuple[Ints, Bools, Columns]:
    """The connections between these ranks: both ends as one number, which ones they are, and the columns of all."""
    ends = edges.ends
    between = np.isin(ends.ranks, members) & np.isin(ends.peers, members) & (ends.ranks != ends.peers)
    return (ends.ranks[between] << _SHIFT) | ends.peers[between], between, ends
