"""The connections between ranks as the kernel sees them: the bytes that flow, over all connections of a pair, now and
since an earlier time; progress, unread data, stuck and busy edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sized
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING

import numpy as np

from ... import words
from ...columns import taken
from ...confidence import Basis
from ...model import MAX_SUSPECTS
from .job import Sample

if TYPE_CHECKING:
    from ...columns import Bools, EdgeColumns, Ends, Floats, Ints
    from .groups import Group
    from .job import Job

PROGRESS = 65536.0
"""Bytes per second from which a transfer counts as going on. The slowest of networks in use moves many times as much;
a link that is choked below it stands still as far as training is concerned."""

_SHIFT = 32  # bits for a rank, where two make one number
_MAX_FACTS = 4
_BUSY = 0.2  # share of time from which an edge may be what the others wait for
_DISTINCT = 1.5  # by which the busiest edges exceed the ordinary one
_LOSSY = 10  # retransmissions from which packets are lost on an edge
_TIE = 0.9  # of the weight at a rank: from here on another has as much
_REST = 0.5  # of the weight at the first suspect: from here on the edges that it does not explain need another
_NEAR = 0.6  # edges this near to the busiest are stuck together with it


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


@dataclass(slots=True)
class Blame:
    """Ranks that the transport points at, why, and how surely."""

    suspects: list[int]
    evidence: list[str]
    basis: Basis


def sample(job: Job) -> Sample:
    rows, columns = job.columns.rows, job.columns
    counted = np.flatnonzero((rows.moved >= 0) & (rows.open_seconds >= job.blocked_seconds)).tolist()
    moved = {(columns.group(row)[0], int(columns.row_numbers[row])): int(rows.moved[row]) for row in counted}
    return Sample(job.time, job.edges, moved)


def progress(job: Job, group: Group, ranks: Collection[int], seconds: float) -> float:
    """Bytes per second of the fastest transfer of these ranks with others of the group, or of the group itself where
    the transport counts them, within these seconds."""
    before = _before(job, seconds)
    flows = _flows(job, group.members, before)
    rates = np.maximum(flows.acked, flows.received)[np.isin(flows.senders, list(ranks))]
    return max(float(rates.max(initial=0.0)), *_counted(job, group, before).values(), 0.0)


def moving(job: Job, seconds: float, least: float) -> dict[int, float]:
    """Ranks that have exchanged so many bytes per second with another within these seconds; each with the most."""
    before = _before(job, seconds)
    flows = _flows(job, job.ranks, before)
    rates = np.maximum(flows.acked, flows.received)
    groups = [job.groups[each] for each in dict.fromkeys(key[0] for key in before.moved) if each in job.groups]
    counted = [each for group in groups for each in _counted(job, group, before).items()]
    numbers = np.concatenate([flows.senders, flows.receivers, np.array([n for n, _ in counted], dtype=np.int64)])
    rates = np.concatenate([rates, rates, [rate for _, rate in counted]])
    rising = np.argsort(rates)[np.count_nonzero(rates < least) :]
    return dict(zip(numbers[rising].tolist(), rates[rising].tolist(), strict=True))  # the last of each counts


def stopped(job: Job, ranks: Iterable[int]) -> Blame | None:
    """Processes in state T, with what lies unread there."""
    found = [number for number in ranks if number in job.stopped]
    if not found:
        return None
    evidence = [f"the process of rank {number} is stopped (state T)" for number in found[:MAX_SUSPECTS]]
    unread = [_lie_unread(*queue) for queue in _unread(job, found[:MAX_SUSPECTS]).items()]
    return Blame(found, evidence + unread, Basis.STATE)


def broken(job: Job, ranks: Collection[int], seconds: float) -> Blame | None:
    """The endpoint common to the edges that are stuck, if a retransmission timer has backed off: a dead link.

    On a link that lets a little through, the edges whose data is acknowledged at times count as well.
    """
    flows = _flows(job, ranks, _before(job, seconds))
    are_stuck = (flows.send_queue > 0) & ((flows.backoff > 0) | (flows.shares >= _BUSY))
    if not flows.backoff[are_stuck].any():
        return None
    return _endpoints(flows, are_stuck.astype(np.float64), are_stuck, Basis.STATE)


def unread(job: Job, ranks: Collection[int]) -> Blame | None:
    """The rank that leaves most of what it was sent unread."""
    queues = _unread(job, ranks)
    most = max(queues.values(), default=0)
    suspects = [number for number, nbytes in queues.items() if nbytes > 0.5 * most]
    return _few(suspects, ranks, lambda number: _lie_unread(number, queues[number]))


def busy(job: Job, ranks: Collection[int], seconds: float, late: Collection[int] = ()) -> Blame | None:
    """The endpoint common to the edges that had data in flight, or lost it, far more than the ordinary edge.

    In a ring all edges move the same bytes, so their rate does not place a slow link; the share of time does. An edge
    at a late rank is busy, and loses what that one has no room for, because it is late.
    """
    flows = _flows(job, ranks, _before(job, seconds))
    shares, ordinary = flows.shares, flows.ordinary
    are_busy = (shares >= max(_BUSY, _NEAR * shares.max(initial=0.0))) & (shares >= _DISTINCT * ordinary)
    are_lossy = (flows.retransmits >= _LOSSY) & (5 * flows.retransmits >= flows.retransmits.sum()) & (shares >= _BUSY)
    are_apart = ~(np.isin(flows.senders, list(late)) | np.isin(flows.receivers, list(late)))
    striking = (are_busy | are_lossy) & are_apart
    if not striking.any():
        return None
    # The other edges of a slow link tell its two ends apart, with what little they carry: that they lose packets at
    # all counts, not how many, since that goes with what they carry.
    excess = np.maximum(0.0, shares - ordinary) + np.minimum(1.0, flows.retransmits / _LOSSY)
    return _endpoints(flows, excess * are_apart, striking, Basis.COMPARISON)


def _before(job: Job, seconds: float) -> Sample:
    """The oldest sample within these seconds; that of now where there is none, since which nothing has moved."""
    within = (each for each in job.samples if job.time - seconds <= each.time < job.time)
    return next(within, Sample(job.time, job.edges, {}))


def _flows(job: Job, ranks: Collection[int], before: Sample) -> Flows:
    return flows_between(ranks, before.edges, job.edges, job.time - before.time)


def _counted(job: Job, group: Group, before: Sample) -> dict[int, float]:
    """Bytes per second of the members whose operations blocked then."""
    now = zip(group.numbers.tolist(), group.moved.tolist(), strict=True) if before.moved else ()
    known = ((number, nbytes, before.moved.get((group.id, number))) for number, nbytes in now)
    return {n: (nbytes - earlier) / (job.time - before.time) for n, nbytes, earlier in known if earlier is not None}


def least_moved(group: Group) -> Blame | None:
    """The rank that the transport itself, where it counts bytes, has seen move least."""
    pairs = zip(group.numbers.tolist(), group.moved.tolist(), strict=True)
    moved = {number: nbytes for number, nbytes in pairs if nbytes >= 0}
    if len(moved) < 2:
        return None
    least = min(moved.values())
    suspects = sorted(number for number, value in moved.items() if value == least)
    return _few(suspects, moved, lambda number: f"rank {number} has moved {words.nbytes(moved[number])}, the least")


def _unread(job: Job, ranks: Collection[int]) -> dict[int, int]:
    """Bytes that lie unread, by rank, the most first."""
    ends = job.edges.ends
    unread = (ends.receive_queue > 0) & (ends.peers >= 0) & np.isin(ends.ranks, list(ranks))
    queues: Counter[int] = Counter()
    for number, nbytes in zip(ends.ranks[unread].tolist(), ends.receive_queue[unread].tolist(), strict=True):
        queues[number] += nbytes
    return dict(sorted(queues.items(), key=lambda queue: (-queue[1], queue[0])))


def _lie_unread(number: int, nbytes: int) -> str:
    return f"{words.nbytes(nbytes)} lie unread at rank {number}"


def _few(suspects: list[int], ranks: Sized, fact: Callable[[int], str]) -> Blame | None:
    """The suspects stand out among the ranks, unless there are none or most are suspects."""
    if not suspects or 2 * len(suspects) > len(ranks):
        return None
    basis = Basis.COMPARISON if len(suspects) == 1 else Basis.REMAINDER
    return Blame(suspects, list(map(fact, suspects[:MAX_SUSPECTS])), basis)


def _endpoints(flows: Flows, weights: Floats, striking: Bools, basis: Basis) -> Blame | None:
    """The fewest ranks at which these edges end: the one with most of their weight, then the one with most of the rest.

    A single edge has its sender named: data that leaves a rank slowly is choked there more often than where it
    arrives. The busiest of the striking edges are told.
    """
    busiest = np.argsort(np.where(striking, -flows.shares, np.inf), kind="stable")
    facts = [flows.told(place) for place in busiest[: min(striking.sum(), _MAX_FACTS)]]
    ends_of = list(zip(flows.senders.tolist(), flows.receivers.tolist(), strict=True))
    to_explain = {ends for ends, is_striking in zip(ends_of, striking.tolist(), strict=True) if is_striking}
    left = {ends: weight for ends, weight in zip(ends_of, weights.tolist(), strict=True) if weight > 0}
    suspects: list[int] = []
    most = 0.0
    while to_explain & left.keys() and len(suspects) < MAX_SUSPECTS:
        scores, sends = Counter[int](), Counter[int]()
        for (sender, receiver), weight in left.items():
            scores.update({sender: weight, receiver: weight})  # weights add up as counts do
            sends.update({sender: weight})
        best = max(scores.values())
        if best < _REST * most:
            break
        most = max(most, best)
        tied = [number for number in scores if scores[number] > _TIE * best]
        first, *others = sorted(tied, key=lambda number: (-sends[number], -scores[number], number))
        suspects.append(first)
        for rival in (other for other in others if (first, other) in left or (other, first) in left):
            if sends[rival] > _TIE * sends[first]:
                suspects.append(rival)
                basis = Basis.REMAINDER
            else:
                facts.append(f"rank {first} is the sender; its peer, rank {rival}, is not excluded")
                basis = max(basis, Basis.COMPARISON)
        left = {ends: weight for ends, weight in left.items() if not set(ends) & set(suspects)}
    return Blame(suspects, facts, basis) if suspects else None
