"""The connections between ranks as the kernel sees them: progress, unread data, stuck and busy edges."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ... import words
from .confidence import Basis
from .flows import flows_between
from .verdict import MAX_SUSPECTS

if TYPE_CHECKING:
    from ...columns import EdgeColumns
    from .flows import Flows
    from .groups import Group
    from .job import Job

PROGRESS = 65536.0
"""Bytes per second from which a transfer counts as going on. The slowest of networks in use moves many times as much;
a link that is choked below it stands still as far as training is concerned."""

_SAMPLES = 16
_BUSY = 0.2  # share of time from which an edge may be what the others wait for
_DISTINCT = 1.5  # by which the busiest edges exceed the ordinary one
_LOSSY = 10  # retransmissions from which packets are lost on an edge
_TIE = 0.9  # of the weight at a rank: from here on another has as much
_REST = 0.5  # of the weight at the first suspect: from here on the edges that it does not explain need another
_NEAR = 0.6  # edges this near to the busiest are stuck together with it


@dataclass(slots=True)
class Blame:
    """Ranks that the transport points at, why, and how surely."""

    suspects: list[int]
    evidence: list[str]
    basis: Basis


class _Sample(NamedTuple):
    time: float
    edges: EdgeColumns
    moved: dict[tuple[str, int], int]  # bytes by group and rank, of operations that are open for long


class Transport:
    """A few samples of all edges, and what follows from their differences."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES)

    def sample(self, job: Job, open_seconds: float) -> None:
        """Keep the edges of now, and the bytes of operations that are open for longer than that."""
        rows, columns = job.columns.rows, job.columns
        counted = np.flatnonzero((rows.moved >= 0) & (rows.open_seconds > open_seconds)).tolist()
        moved = {(columns.group(row)[0], int(columns.row_numbers[row])): int(rows.moved[row]) for row in counted}
        self._samples.append(_Sample(job.time, job.edges, moved))

    def clear(self) -> None:
        self._samples.clear()

    def progress(self, job: Job, group: Group, ranks: Collection[int], seconds: float) -> float:
        """Bytes per second of the fastest transfer of these ranks with others, or of the group itself where it tells.

        Measured over at least `seconds`; 0 where there is nothing to compare with.
        """
        earlier = self._before(job.time - seconds)
        if earlier is None:
            return 0.0
        before = earlier.moved
        counted = [
            nbytes - before.get((group.id, number), nbytes)
            for number, nbytes in (zip(group.numbers.tolist(), group.moved.tolist(), strict=True) if before else ())
        ]
        flows = self._flows(job, group.members, earlier)
        fastest = float(flows.moved[np.isin(flows.senders, list(ranks))].max(initial=0))
        return float(max(fastest, *counted, 0.0)) / (job.time - earlier.time)

    def moving(self, job: Job, first: float, least: float) -> dict[int, float]:
        """Ranks that have exchanged so many bytes per second with another since that time; each with the most."""
        samples = [sample for sample in self._samples if first <= sample.time < job.time]
        if not samples:
            return {}
        moving: dict[int, float] = defaultdict(float)
        flows = self._flows(job, job.ranks, samples[0])
        rates = flows.moved / (job.time - samples[0].time)
        for column in (flows.senders, flows.receivers):
            for number, rate in zip(column.tolist(), rates.tolist(), strict=True):
                moving[number] = max(rate, moving[number])
        counted = {key: (sample.time, nbytes) for sample in reversed(samples) for key, nbytes in sample.moved.items()}
        for (group_id, number), (time, nbytes) in counted.items():
            group = job.groups.get(group_id)
            if group is not None and number in group.members:
                rate = (int(group.moved[group.members[number]]) - nbytes) / (job.time - time)
                moving[number] = max(rate, moving[number])
        return {number: rate for number, rate in moving.items() if rate >= least}

    def has_sent(self, job: Job, rank: int, seconds: float) -> bool:
        """Whether peers received anything of this rank during the last so many seconds, as far as samples tell."""
        since = next((sample for sample in self._samples if sample.time >= job.time - seconds), None)
        if since is None:
            return False
        flows = self._flows(job, job.ranks, since)
        return bool((flows.received_bytes[flows.receivers == rank] > 0).any())

    def stopped(self, job: Job, ranks: Iterable[int]) -> Blame | None:
        """Processes in state T, with what lies unread there."""
        stopped = set(job.columns.numbers[job.columns.places.are_stopped].tolist())
        found = [number for number in ranks if number in stopped]
        if not found:
            return None
        evidence = [f"the process of rank {number} is stopped (state T)" for number in found[:5]]
        unread = self._unread(job, set(found))
        evidence += [
            f"{words.nbytes(unread[number])} lie unread at rank {number}" for number in found if number in unread
        ]
        return Blame(found, evidence, Basis.STATE)

    def broken(self, job: Job, ranks: Collection[int], seconds: float) -> Blame | None:
        """The endpoint common to the edges that are stuck, if a retransmission timer has backed off: a dead link.

        On a link that lets a little through, the edges whose data is acknowledged at times count as well.
        """
        flows = self._flows(job, ranks, self._before(job.time - seconds))
        stuck = flows.where((flows.send_queue > 0) & ((flows.backoff > 0) | (flows.shares >= _BUSY)))
        if not any(flow.backoff for flow in stuck):
            return None
        facts = [
            f"edge {flow.ends[0]} -> {flow.ends[1]}: {words.nbytes(flow.send_queue)} unacknowledged, "
            f"timer backed off {flow.backoff} times"
            for flow in sorted(stuck)[:4]
        ]
        return _endpoints({flow.ends: 1.0 for flow in stuck}, facts, Basis.STATE)

    def unread(self, job: Job, ranks: Collection[int]) -> Blame | None:
        """The rank that leaves most of what it was sent unread."""
        queues = self._unread(job, set(ranks))
        order = sorted(queues, key=lambda number: (-queues[number], number))
        if not order:
            return None
        suspects = [number for number in order if queues[number] > 0.5 * queues[order[0]]]
        return _few(suspects, set(ranks), lambda number: f"{words.nbytes(queues[number])} lie unread at rank {number}")

    def busy(self, job: Job, ranks: Collection[int], seconds: float) -> Blame | None:
        """The endpoint common to the edges that had data in flight, or lost it, far more than the ordinary edge.

        In a ring all edges move the same bytes, so their rate does not place a slow link; the share of time does.
        """
        earlier = self._before(job.time - seconds)
        if earlier is None:
            return None
        flows = self._flows(job, ranks, earlier)
        shares = flows.shares
        if not len(shares):
            return None
        ordinary, most = float(np.sort(shares)[len(shares) // 2]), float(shares.max())
        are_busy = (shares >= max(_BUSY, _NEAR * most)) & (shares >= _DISTINCT * ordinary)
        are_lossy = (flows.retransmits >= _LOSSY) & (5 * flows.retransmits >= flows.retransmits.sum())
        striking = flows.where(are_busy | are_lossy)
        if not striking:
            return None
        facts = [
            f"edge {flow.ends[0]} -> {flow.ends[1]}: busy {words.percent(flow.share)} of the time, the ordinary edge "
            f"{words.percent(ordinary)}; {words.count(int(flow.retransmits), 'retransmission')}, "
            f"{words.nbytes(flow.send_queue)} unacknowledged"
            for flow in sorted(striking, key=lambda flow: (-flow.share, flow.ends))[:4]
        ]
        # The other edges of a slow link tell its two ends apart, with what little they carry: that they lose packets at
        # all counts, not how many, since that goes with what they carry.
        excess = np.maximum(0.0, shares - ordinary) + np.minimum(1.0, flows.retransmits / _LOSSY)
        pairs = zip(flows.senders.tolist(), flows.receivers.tolist(), strict=True)
        return _endpoints(dict(zip(pairs, excess.tolist(), strict=True)), facts, Basis.COMPARISON)

    def _before(self, time: float) -> _Sample | None:
        """The newest sample from then or earlier."""
        return next((sample for sample in reversed(self._samples) if sample.time <= time), None)

    def _unread(self, job: Job, ranks: Collection[int]) -> dict[int, int]:
        """Bytes, by rank, where there are any."""
        ends = job.edges.ends
        unread = (ends.receive_queue > 0) & (ends.peers >= 0) & np.isin(ends.ranks, list(ranks))
        queues: Counter[int] = Counter()
        for number, nbytes in zip(ends.ranks[unread].tolist(), ends.receive_queue[unread].tolist(), strict=True):
            queues[number] += nbytes
        return queues

    def _flows(self, job: Job, ranks: Collection[int], earlier: _Sample | None) -> Flows:
        since = (None, 0.0) if earlier is None else (earlier.edges, job.time - earlier.time)
        return flows_between(ranks, job.edges, *since)


def least_moved(group: Group) -> Blame | None:
    """The rank that the transport itself, where it counts bytes, has seen move least."""
    pairs = zip(group.numbers.tolist(), group.moved.tolist(), strict=True)
    moved = {number: nbytes for number, nbytes in pairs if nbytes >= 0}
    if len(moved) < 2:
        return None
    least = min(moved.values())
    suspects = sorted(number for number, value in moved.items() if value == least)
    return _few(suspects, moved, lambda number: f"rank {number} has moved {words.nbytes(moved[number])}, the least")


def _few(suspects: list[int], ranks: Sized, fact: Callable[[int], str]) -> Blame | None:
    """The suspects stand out among the ranks, unless most are suspects."""
    if 2 * len(suspects) > len(ranks):
        return None
    basis = Basis.COMPARISON if len(suspects) == 1 else Basis.REMAINDER
    return Blame(suspects, list(map(fact, suspects[:5])), basis)


def _endpoints(weights: dict[tuple[int, int], float], facts: list[str], basis: Basis) -> Blame | None:
    """The fewest ranks at which these edges end: the one with most of their weight, then the one with most of the rest.

    A single edge has its sender named: data that leaves a rank slowly is choked there more often than where it
    arrives.
    """
    left = {ends: weight for ends, weight in weights.items() if weight > 0}
    suspects: list[int] = []
    most = 0.0
    while left and len(suspects) < MAX_SUSPECTS:
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
                facts = [*facts, f"rank {first} is the sender; its peer, rank {rival}, is not excluded"]
                basis = max(basis, Basis.COMPARISON)
        left = {ends: weight for ends, weight in left.items() if not set(ends) & set(suspects)}
    return Blame(suspects, facts, basis) if suspects else None
