"""The bytes that flow between ranks, over all connections of a pair, now and since an earlier time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ... import words

if TYPE_CHECKING:
    from ...columns import EdgeColumns, Ends, Floats, Ints

_SHIFT = 32  # bits for a rank, where two make one number


@dataclass(frozen=True, slots=True)
class Flows:
    """Columns with a place for each two ranks that had a connection then and have one now, in their order."""

    senders: Ints
    receivers: Ints
    acked: Floats  # bytes per second
    received: Floats  # at the sender's end, of what comes back
    retransmits: Floats
    shares: Floats  # of the time, with data in flight
    send_queue: Floats  # bytes, now
    backoff: Floats

    def __len__(self) -> int:
        return len(self.senders)

    @property
    def ordinary(self) -> float:
        """The share of the ordinary edge."""
        return float(np.sort(self.shares)[len(self) // 2]) if len(self) else 0.0

    def told(self, place: int) -> str:
        retransmits = words.count(int(self.retransmits[place]), "retransmission")
        return (
            f"edge {self.senders[place]} -> {self.receivers[place]}: busy {words.percent(self.shares[place])} of the "
            f"time, the ordinary edge {words.percent(self.ordinary)}; {retransmits}, "
            f"{words.nbytes(self.send_queue[place])} unacknowledged, timer backed off {self.backoff[place]:.0f} times"
        )


def flows_between(ranks: Collection[int], then: EdgeColumns, now: EdgeColumns, seconds: float) -> Flows:
    """Between these ranks, from one time to another, so many seconds later."""
    members = np.fromiter(ranks, dtype=np.int64, count=len(ranks))
    before, after = _pairs(members, then.ends), _pairs(members, now.ends)
    keys = np.intersect1d(before[0], after[0])

    def sums(ends: Ends, pairs: Ints, rows: Ints) -> Callable[[str], Floats]:
        rows, pairs = rows[np.isin(pairs, keys)], pairs[np.isin(pairs, keys)]
        places = np.searchsorted(keys, pairs)
        return lambda name: np.bincount(places, getattr(ends, name)[rows], len(keys)).astype(np.float64)

    old, new = sums(then.ends, *before), sums(now.ends, *after)
    elapsed = seconds or 1.0
    return Flows(
        senders=keys >> _SHIFT,
        receivers=keys & ((1 << _SHIFT) - 1),
        acked=(new("acked_bytes") - old("acked_bytes")) / elapsed,
        received=(new("received_bytes") - old("received_bytes")) / elapsed,
        retransmits=new("retransmits") - old("retransmits"),
        shares=(new("busy_seconds") - old("busy_seconds")) / elapsed,
        send_queue=new("send_queue"),
        backoff=new("backoff"),
    )


def _pairs(members: Ints, ends: Ends) -> tuple[Ints, Ints]:
    """The connections between these ranks: both ends as one number, and their places."""
    rows = np.flatnonzero(np.isin(ends.ranks, members) & np.isin(ends.peers, members) & (ends.ranks != ends.peers))
    return (ends.ranks[rows] << _SHIFT) | ends.peers[rows], rows
