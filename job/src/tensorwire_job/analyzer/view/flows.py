"""The bytes that flow between ranks, over all connections of a pair, now and since an earlier time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ... import words
from ...columns import taken

if TYPE_CHECKING:
    from ...columns import EdgeColumns, Ends, Floats, Ints

_SHIFT = 32  # bits for a rank, where two make one number


class Sample(NamedTuple):
    """What the transport had moved at one time.

    Attributes:
        moved: bytes by process group and rank, of operations that block, where the transport counts them itself.
    """

    time: float
    edges: EdgeColumns
    moved: dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Flows:
    """Columns with a place for each two ranks that had a connection then and have one now, in their order."""

    senders: Ints
    receivers: Ints
    acked: Floats  # bytes per second
    received: Floats  # at the sender's end, of what comes back
    retransmits: Floats
    shares: Floats  # of the time, with data in flight; NaN where none has passed
    send_queue: Floats  # bytes, now
    backoff: Ints  # the most of any connection

    @property
    def ordinary(self) -> float:
        """The share of the ordinary edge."""
        return float(np.sort(self.shares)[len(self.shares) // 2]) if len(self.shares) else 0.0

    def told(self, place: int) -> str:
        """What is known of this edge; of growth only where time has passed."""
        grown = ""
        if not isnan(self.shares[place]):
            retransmits = words.count(int(self.retransmits[place]), "retransmission")
            share, ordinary = words.percent(self.shares[place]), words.percent(self.ordinary)
            grown = f"busy {share} of the time, the ordinary edge {ordinary}; {retransmits}, "
        return (
            f"edge {self.senders[place]} -> {self.receivers[place]}: {grown}{words.nbytes(self.send_queue[place])} "
            f"unacknowledged, timer backed off {self.backoff[place]} times"
        )


def flows_between(ranks: Collection[int], then: EdgeColumns, now: EdgeColumns, seconds: float) -> Flows:
    """Between these ranks, from one time to another, so many seconds later."""
    members = np.fromiter(ranks, dtype=np.int64, count=len(ranks))
    (pairs, rows), (pairs_then, rows_then) = _pairs(members, now.ends), _pairs(members, then.ends)
    keys, places = np.unique(pairs, return_inverse=True)
    places_then = np.searchsorted(keys, pairs_then)
    known = np.append(keys, -1)[places_then] == pairs_then
    places_then, rows_then = places_then[known], rows_then[known]

    def total(name: str) -> Floats:
        return np.bincount(places, getattr(now.ends, name)[rows], len(keys)).astype(np.float64, copy=False)

    def grown(name: str) -> Floats:
        return total(name) - np.bincount(places_then, getattr(then.ends, name)[rows_then], len(keys))

    backoff = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(backoff, places, now.ends.backoff[rows])
    elapsed = seconds or 1.0
    flows = Flows(
        senders=keys >> _SHIFT,
        receivers=keys & ((1 << _SHIFT) - 1),
        acked=grown("acked_bytes") / elapsed,
        received=grown("received_bytes") / elapsed,
        retransmits=grown("retransmits"),
        shares=grown("busy_seconds") / (seconds or nan),
        send_queue=total("send_queue"),
        backoff=backoff,
    )
    return taken(flows, np.bincount(places_then, minlength=len(keys)) > 0)


def _pairs(members: Ints, ends: Ends) -> tuple[Ints, Ints]:
    """The connections between these ranks: both ends as one number, and their places."""
    rows = np.flatnonzero(np.isin(ends.ranks, members) & np.isin(ends.peers, members) & (ends.ranks != ends.peers))
    return (ends.ranks[rows] << _SHIFT) | ends.peers[rows], rows
