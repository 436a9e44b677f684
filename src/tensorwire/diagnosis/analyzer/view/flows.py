"""The bytes that flow between ranks, over all connections of a pair, now or since an earlier time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ...columns import Bools, EdgeColumns, Ends, Floats, Ints

_SHIFT = 32  # bits for a rank, where two make one number


class Flow(NamedTuple):
    """One direction between two ranks, all connections together."""

    ends: tuple[int, int]
    share: float
    retransmits: float
    send_queue: float
    backoff: int


@dataclass(frozen=True, slots=True)
class Flows:
    """Columns with a place for each pair of ranks. Counters are those since an earlier time."""

    senders: Ints
    receivers: Ints
    acked_bytes: Floats
    received_bytes: Floats
    retransmits: Floats
    shares: Floats  # of the time, with data in flight
    send_queue: Floats  # now
    backoff: Ints

    @property
    def moved(self) -> Floats:
        """Bytes in either direction."""
        return np.maximum(self.acked_bytes, self.received_bytes)

    def where(self, wanted: Bools) -> list[Flow]:
        columns = (self.senders, self.receivers, self.shares, self.retransmits, self.send_queue, self.backoff)
        return [
            Flow((sender, receiver), *rest)
            for sender, receiver, *rest in zip(*(column[wanted].tolist() for column in columns), strict=True)
        ]


def flows_between(ranks: Collection[int], edges: EdgeColumns, earlier: EdgeColumns | None, seconds: float) -> Flows:
    """Between these ranks: counters since `earlier`, which is so many seconds ago, if that is given."""
    members = np.fromiter(ranks, dtype=np.int64, count=len(ranks))
    now, then = edges.ends, (earlier or edges).ends
    pairs, rows = _pairs(members, now)
    keys, index = np.unique(pairs, return_inverse=True)
    pairs, rows_then = _pairs(members, then)
    place = np.searchsorted(keys, pairs)
    known = (np.append(keys, -1)[place] == pairs) & (earlier is not None)
    place, rows_then = place[known], rows_then[known]

    def total(places: Ints, column: Ints) -> Floats:
        return np.bincount(places, column, len(keys)).astype(np.float64)

    def grown(name: str) -> Floats:
        return total(index, getattr(now, name)[rows]) - total(place, getattr(then, name)[rows_then])

    backoff, shares = np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys))
    np.maximum.at(backoff, index, now.backoff[rows])
    if seconds > 0 and len(place):
        shares[place] = grown("busy_seconds")[place] / seconds
    return Flows(
        senders=keys >> _SHIFT,
        receivers=keys & ((1 << _SHIFT) - 1),
        acked_bytes=grown("acked_bytes"),
        received_bytes=grown("received_bytes"),
        retransmits=grown("retransmits"),
        shares=shares,
        send_queue=total(index, now.send_queue[rows]),
        backoff=backoff,
    )


def _pairs(members: Ints, ends: Ends) -> tuple[Ints, Ints]:
    """The connections between these ranks: both ends as one number, and their places."""
    between = np.isin(ends.ranks, members) & np.isin(ends.peers, members) & (ends.ranks != ends.peers)
    rows = np.flatnonzero(between)
    return (ends.ranks[rows] << _SHIFT) | ends.peers[rows], rows
