"""What the kernel says of the connections between ranks: progress, unread data, stuck and busy edges."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .. import words
from .confidence import Basis
from .verdict import MAX_SUSPECTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ..model import Edge
    from .job import Group, Job

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

Ends = tuple[int, int]


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
    seconds: float = 0.0  # since that sample; 0 where there is none

    @property
    def share(self) -> float:
        """Of the time, with data in flight."""
        return self.busy_seconds / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class Blame:
    """Ranks that the transport points at, why, and how surely."""

    suspects: list[int]
    evidence: list[str]
    basis: Basis


class _Sample(NamedTuple):
    time: float
    edges: Sequence[Edge]
    moved: dict[tuple[str, int], int]  # bytes by group and rank, of operations that are open for long


class Transport:
    """A few samples of all edges, and what follows from their differences."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES)

    def sample(self, job: Job, open_seconds: float) -> None:
        """Keep the edges of now, and the bytes of operations that are open for longer than that."""
        moved = {
            (group.id, number): process_group.sent_bytes + process_group.received_bytes
            for group in job.groups.values()
            for number, process_group in group.members.items()
            if process_group.sent_bytes >= 0 and (process_group.open_seconds or 0.0) > open_seconds
        }
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
        elapsed = job.time - earlier.time
        fastest = 0.0
        for number, process_group in group.members.items():
            before = earlier.moved.get((group.id, number))
            if before is not None:
                fastest = max(fastest, process_group.sent_bytes + process_group.received_bytes - before)
        for (rank, _), flow in self._flows(job, group.members, earlier).items():
            if rank in ranks:
                fastest = max(fastest, flow.acked_bytes, flow.received_bytes)
        return fastest / elapsed

    def moving(self, job: Job, first: float, least: float) -> dict[int, float]:
        """Ranks that have exchanged so many bytes per second with another since that time; each with the most."""
        samples = [sample for sample in self._samples if first <= sample.time < job.time]
        if not samples:
            return {}
        earlier = samples[0]
        elapsed = job.time - earlier.time
        moving: dict[int, float] = {}
        for ends, flow in self._flows(job, job.ranks, earlier).items():
            rate = max(flow.acked_bytes, flow.received_bytes) / elapsed
            if rate >= least:
                moving |= {number: max(rate, moving.get(number, 0.0)) for number in ends}
        for group in job.groups.values():
            for number, member in group.members.items():
                since = next((sample for sample in samples if (group.id, number) in sample.moved), None)
                if since is not None:
                    moved = member.sent_bytes + member.received_bytes - since.moved[group.id, number]
                    rate = moved / (job.time - since.time)
                    if rate >= least:
                        moving[number] = max(rate, moving.get(number, 0.0))
        return moving

    def has_sent(self, job: Job, rank: int, seconds: float) -> bool:
        """Whether peers received anything of this rank during the last so many seconds, as far as samples tell."""
        since = next((sample for sample in self._samples if sample.time >= job.time - seconds), None)
        if since is None:
            return False
        before = {(edge.rank, edge.peer): 0 for edge in since.edges if edge.peer == rank}
        for edge in since.edges:
            if edge.peer == rank:
                before[edge.rank, edge.peer] += edge.received_bytes
        for edge in job.edges:
            if (edge.rank, edge.peer) in before:
                before[edge.rank, edge.peer] -= edge.received_bytes
        return any(left < 0 for left in before.values())

    def stopped(self, job: Job, ranks: Iterable[int]) -> Blame | None:
        """Processes in state T, with what lies unread there."""
        found = [number for number in ranks if job.ranks[number].process.is_stopped]
        if not found:
            return None
        evidence = [f"the process of rank {number} is stopped (state T)" for number in found[:5]]
        unread = self._unread(job, set(found))
        evidence += [
            f"{words.nbytes(unread[number])} lie unread at rank {number}" for number in found if unread[number]
        ]
        return Blame(found, evidence, Basis.STATE)

    def broken(self, job: Job, ranks: Collection[int], seconds: float) -> Blame | None:
        """The endpoint common to the edges that are stuck, if a retransmission timer has backed off: a dead link.

        Of a link that lets a little through, the edges whose data is acknowledged at times count as well.
        """
        flows = self._flows(job, ranks, self._before(job.time - seconds))
        stuck = {
            ends: flow
            for ends, flow in flows.items()
            if flow.send_queue > 0 and (flow.backoff > 0 or flow.share >= _BUSY)
        }
        if not any(flow.backoff for flow in stuck.values()):
            return None
        facts = [
            f"edge {a} -> {b}: {words.nbytes(flow.send_queue)} unacknowledged, timer backed off {flow.backoff} times"
            for (a, b), flow in sorted(stuck.items())[:4]
        ]
        return _endpoints(dict.fromkeys(stuck, 1.0), facts, Basis.STATE)

    def unread(self, job: Job, ranks: Collection[int]) -> Blame | None:
        """The rank that leaves most of what it was sent unread."""
        queues = self._unread(job, set(ranks))
        order = sorted(queues, key=lambda number: (-queues[number], number))
        if not order or queues[order[0]] == 0:
            return None
        suspects = [number for number in order if queues[number] > 0.5 * queues[order[0]]]
        if 2 * len(suspects) > len(queues):
            return None
        evidence = [f"{words.nbytes(queues[number])} lie unread at rank {number}" for number in suspects[:5]]
        return Blame(suspects, evidence, Basis.COMPARISON if len(suspects) == 1 else Basis.REMAINDER)

    def busy(self, job: Job, ranks: Collection[int], seconds: float) -> Blame | None:
        """The endpoint common to the edges that had data in flight, or lost it, far more than the ordinary edge.

        In a ring all edges move the same bytes, so their rate does not place a slow link; the share of time does.
        """
        earlier = self._before(job.time - seconds)
        if earlier is None:
            return None
        flows = self._flows(job, ranks, earlier)
        if not flows:
            return None
        shares = sorted(flow.share for flow in flows.values())
        ordinary = shares[len(shares) // 2]
        lost = sum(flow.retransmits for flow in flows.values())
        facts = []
        for (a, b), flow in sorted(flows.items(), key=lambda item: (-item[1].share, item[0])):
            is_busy = flow.share >= max(_BUSY, _NEAR * shares[-1]) and flow.share >= _DISTINCT * ordinary
            is_lossy = flow.retransmits >= _LOSSY and 5 * flow.retransmits >= lost
            if is_busy or is_lossy:
                facts.append(
                    f"edge {a} -> {b}: busy {words.percent(flow.share)} of the time, the ordinary edge "
                    f"{words.percent(ordinary)}; {words.count(flow.retransmits, 'retransmission')}, "
                    f"{words.nbytes(flow.send_queue)} unacknowledged"
                )
        if not facts:
            return None
        # The other edges of a slow link tell its two ends apart, with what little they carry: that they lose packets at
        # all counts, not how many, since that goes with what they carry.
        weights = {
            ends: max(0.0, flow.share - ordinary) + min(1.0, flow.retransmits / _LOSSY) for ends, flow in flows.items()
        }
        return _endpoints(weights, facts[:4], Basis.COMPARISON)

    def _before(self, time: float) -> _Sample | None:
        """The newest sample from then or earlier."""
        return next((sample for sample in reversed(self._samples) if sample.time <= time), None)

    def _unread(self, job: Job, ranks: set[int]) -> dict[int, int]:
        queues = dict.fromkeys(ranks, 0)
        for edge in job.edges:
            if edge.rank in queues and edge.peer >= 0:
                queues[edge.rank] += edge.receive_queue
        return queues

    def _flows(self, job: Job, ranks: Collection[int], earlier: _Sample | None) -> dict[Ends, Flow]:
        inside = set(ranks)
        flows: dict[Ends, Flow] = {}
        for edge in job.edges:
            if edge.rank in inside and edge.peer in inside and edge.rank != edge.peer:
                flow = flows.setdefault((edge.rank, edge.peer), Flow())
                flow.receive_queue += edge.receive_queue
                flow.send_queue += edge.send_queue
                flow.backoff = max(flow.backoff, edge.backoff)
                _add(flow, edge, 1)
        if earlier is not None:
            for edge in earlier.edges:
                known = flows.get((edge.rank, edge.peer))
                if known is not None:
                    _add(known, edge, -1)
                    known.seconds = job.time - earlier.time
        return flows


def _add(flow: Flow, edge: Edge, sign: int) -> None:
    flow.acked_bytes += sign * edge.acked_bytes
    flow.received_bytes += sign * edge.received_bytes
    flow.busy_seconds += sign * edge.busy_seconds
    flow.retransmits += sign * edge.retransmits


def least_moved(group: Group) -> Blame | None:
    """The rank that the transport itself, where it counts bytes, has seen move least."""
    moved = {
        number: member.sent_bytes + member.received_bytes
        for number, member in group.members.items()
        if member.sent_bytes >= 0
    }
    if len(moved) < 2:
        return None
    least = min(moved.values())
    suspects = sorted(number for number, value in moved.items() if value == least)
    if 2 * len(suspects) > len(moved):
        return None
    facts = [f"rank {number} has moved {words.nbytes(moved[number])}, the least" for number in suspects[:5]]
    return Blame(suspects, facts, Basis.COMPARISON if len(suspects) == 1 else Basis.REMAINDER)


def _endpoints(weights: dict[Ends, float], facts: list[str], basis: Basis) -> Blame | None:
    """The fewest ranks at which these edges end: the one with most of their weight, then the one with most of the rest.

    Of the two ends of a single edge the sender: what leaves a rank slowly is choked there more often than where it
    arrives.
    """
    left = {ends: weight for ends, weight in weights.items() if weight > 0}
    suspects: list[int] = []
    most = 0.0
    while left and len(suspects) < MAX_SUSPECTS:
        scores: dict[int, float] = {}
        sends: dict[int, float] = {}
        for (sender, receiver), weight in left.items():
            scores[sender] = scores.get(sender, 0.0) + weight
            scores[receiver] = scores.get(receiver, 0.0) + weight
            sends[sender] = sends.get(sender, 0.0) + weight
        best = max(scores.values())
        if best < _REST * most:
            break
        most = max(most, best)
        tied = [number for number in scores if scores[number] > _TIE * best]
        tied.sort(key=lambda number: (-sends.get(number, 0.0), -scores[number], number))
        first = tied[0]
        suspects.append(first)
        rivals = [number for number in tied[1:] if (first, number) in left or (number, first) in left]
        for rival in rivals:
            if sends.get(rival, 0.0) > _TIE * sends.get(first, 0.0):
                suspects.append(rival)
                basis = Basis.REMAINDER
            else:
                facts = [*facts, f"rank {first} is the sender; its peer, rank {rival}, is not excluded"]
                basis = max(basis, Basis.COMPARISON)
        left = {ends: weight for ends, weight in left.items() if not set(ends) & set(suspects)}
    return Blame(suspects, facts, basis) if suspects else None
