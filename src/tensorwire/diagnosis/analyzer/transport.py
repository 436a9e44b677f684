"""What the kernel says of the connections between ranks: progress, unread data, stuck and busy edges."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import words
from .job import is_stopped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..model import Edge
    from .job import Group, Job

PROGRESS = 65536.0
"""Bytes per second from which a transfer counts as going on. The slowest of networks in use moves many times as much;
a link that is choked below it stands still as far as training is concerned."""

_SAMPLES = 16
_BUSY = 0.2  # share of time from which an edge may be what the others wait for
_DISTINCT = 1.5  # by which the busiest edges exceed the ordinary one
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
    confidence: float


class Transport:
    """A few samples of all edges, and what follows from their differences."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, list[Edge], dict[tuple[str, int], int]]] = deque(maxlen=_SAMPLES)

    def sample(self, job: Job, open_seconds: float) -> None:
        """Keep the edges of now, and the bytes of operations that are open for longer than that."""
        moved = {
            (group.id, number): communicator.sent_bytes + communicator.received_bytes
            for group in job.groups.values()
            for number, communicator in group.members.items()
            if communicator.sent_bytes >= 0 and (communicator.open_seconds or 0.0) > open_seconds
        }
        self._samples.append((job.time, job.edges, moved))

    def clear(self) -> None:
        self._samples.clear()

    def progress(self, job: Job, group: Group, ranks: Collection[int], seconds: float) -> float:
        """Bytes per second of the fastest transfer between these ranks, or of the group itself where it tells.

        Measured over at least `seconds`; 0 where there is nothing to compare with.
        """
        earlier = self._before(job.time - seconds)
        if earlier is None:
            return 0.0
        elapsed = job.time - earlier[0]
        fastest = 0.0
        for number, communicator in group.members.items():
            before = earlier[2].get((group.id, number))
            if before is not None:
                fastest = max(fastest, communicator.sent_bytes + communicator.received_bytes - before)
        for flow in self._flows(job, ranks, earlier).values():
            fastest = max(fastest, flow.acked_bytes, flow.received_bytes)
        return fastest / elapsed

    def has_sent(self, job: Job, rank: int, seconds: float) -> bool:
        """Whether peers received anything of this rank during the last so many seconds, as far as samples tell."""
        since = next((sample for sample in self._samples if sample[0] >= job.time - seconds), None)
        if since is None:
            return False
        before = {(edge.rank, edge.peer): 0 for edge in since[1] if edge.peer == rank}
        for edge in since[1]:
            if edge.peer == rank:
                before[edge.rank, edge.peer] += edge.received_bytes
        for edge in job.edges:
            if (edge.rank, edge.peer) in before:
                before[edge.rank, edge.peer] -= edge.received_bytes
        return any(left < 0 for left in before.values())

    def stopped(self, job: Job, ranks: Iterable[int]) -> Blame | None:
        """Processes in state T, with what lies unread there."""
        found = [number for number in ranks if is_stopped(job.ranks[number])]
        if not found:
            return None
        evidence = [f"the process of rank {number} is stopped (state T)" for number in found[:5]]
        unread = self._unread(job, set(found))
        evidence += [
            f"{words.nbytes(unread[number])} lie unread at rank {number}" for number in found if unread[number]
        ]
        return Blame(found, evidence, 0.95)

    def broken(self, job: Job, ranks: Collection[int]) -> Blame | None:
        """The endpoint common to edges whose retransmission timer has backed off: a dead link."""
        flows = self._flows(job, ranks, None)
        edges = {ends: float(flow.backoff) for ends, flow in flows.items() if flow.backoff > 0 and flow.send_queue > 0}
        facts = [f"edge {a} -> {b}: timer backed off {flows[a, b].backoff} times" for a, b in sorted(edges)[:4]]
        return _endpoint(dict.fromkeys(edges, 1.0), facts)

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
        return Blame(suspects, evidence, 0.8 if len(suspects) == 1 else 0.5)

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
        weights: dict[Ends, float] = {}
        facts = []
        for (a, b), flow in sorted(flows.items(), key=lambda item: (-item[1].share, item[0])):
            is_busy = flow.share >= max(_BUSY, _NEAR * shares[-1]) and flow.share >= _DISTINCT * ordinary
            is_lossy = flow.retransmits >= 10 and 5 * flow.retransmits >= lost
            if is_busy or is_lossy:
                weights[a, b] = flow.share * is_busy + flow.retransmits / max(lost, 1)
                facts.append(
                    f"edge {a} -> {b}: busy {100 * flow.share:.0f} % of the time, the ordinary edge "
                    f"{100 * ordinary:.0f} %; {words.count(flow.retransmits, 'retransmission')}, "
                    f"{words.nbytes(flow.send_queue)} unacknowledged"
                )
        return _endpoint(weights, facts[:4])

    def _before(self, time: float) -> tuple[float, list[Edge], dict[tuple[str, int], int]] | None:
        """The newest sample from then or earlier."""
        return next((sample for sample in reversed(self._samples) if sample[0] <= time), None)

    def _unread(self, job: Job, ranks: set[int]) -> dict[int, int]:
        queues = dict.fromkeys(ranks, 0)
        for edge in job.edges:
            if edge.rank in queues and edge.peer >= 0:
                queues[edge.rank] += edge.receive_queue
        return queues

    def _flows(
        self, job: Job, ranks: Collection[int], earlier: tuple[float, list[Edge], dict[tuple[str, int], int]] | None
    ) -> dict[Ends, Flow]:
        inside = set(ranks)
        flows: dict[Ends, Flow] = {}
        for edge in job.edges:
            if edge.rank in inside and edge.peer in inside:
                flow = flows.setdefault((edge.rank, edge.peer), Flow())
                flow.receive_queue += edge.receive_queue
                flow.send_queue += edge.send_queue
                flow.backoff = max(flow.backoff, edge.backoff)
                _add(flow, edge, 1)
        if earlier is not None:
            for edge in earlier[1]:
                known = flows.get((edge.rank, edge.peer))
                if known is not None:
                    _add(known, edge, -1)
                    known.seconds = job.time - earlier[0]
        return flows


def _add(flow: Flow, edge: Edge, sign: int) -> None:
    flow.acked_bytes += sign * edge.acked_bytes
    flow.received_bytes += sign * edge.received_bytes
    flow.busy_seconds += sign * edge.busy_seconds
    flow.retransmits += sign * edge.retransmits


def _endpoint(weights: dict[Ends, float], facts: list[str]) -> Blame | None:
    """The rank at most of these edges; of the two ends of a single one, the sender first."""
    if not weights:
        return None
    scores: dict[int, float] = {}
    sends: dict[int, float] = {}
    for (sender, receiver), weight in weights.items():
        scores[sender] = scores.get(sender, 0.0) + weight
        scores[receiver] = scores.get(receiver, 0.0) + weight
        sends[sender] = sends.get(sender, 0.0) + weight
    order = sorted(scores, key=lambda number: (-scores[number], -sends.get(number, 0.0), number))
    top = [number for number in order if scores[number] > 0.75 * scores[order[0]]]
    if len(top) == 1:
        return Blame(top, facts, 0.9)
    # Both ends of one edge: what leaves a rank slowly is choked there more often than where it arrives.
    if len(top) == 2 and sends.get(top[0], 0.0) > sends.get(top[1], 0.0):
        return Blame(top[:1], [*facts, f"rank {top[0]} is the sender; its peer, rank {top[1]}, is not excluded"], 0.7)
    return Blame(top[:5], facts, 0.5)
