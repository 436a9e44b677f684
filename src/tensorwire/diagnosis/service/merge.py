"""The reports of all nodes, made one observation of the job."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...errors import CorruptDataError, LimitExceededError
from ..model import Observation
from ..protocol.encoding import Decoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..model import Edge, Rank

_SILENT_SECONDS: Final = 5.0  # an agent reports every second
_FORGOTTEN_SECONDS: Final = 3600.0  # since the last report of a node that is not heard of any more
_MAX_NODES = 1 << 14
_MAX_INTEGERS = 1 << 24  # of all nodes: 60,000 ranks with a dozen process groups each, all of them timed


@dataclass(slots=True)
class _Node:
    decoder: Decoder = field(default_factory=Decoder)
    heard: float = 0.0
    is_new: bool = False  # reported since the last observation
    ranks: list[Rank] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)


class Nodes:
    """What is known of a job's nodes. Times are the caller's, of any clock that does not go back."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._nodes: dict[str, _Node] = {}
        self._num_integers = 0
        self._peers: dict[tuple[str, str], int] = {}  # of connections between nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def join(self, name: str, now: float) -> None:
        """An agent has connected; its next report is a full one. Raises LimitExceededError where there are too many."""
        if name not in self._nodes and len(self._nodes) >= _MAX_NODES:
            raise LimitExceededError(f"more than {_MAX_NODES} nodes report")
        node = self._nodes.setdefault(name, _Node())
        self._num_integers -= node.decoder.num_integers
        node.decoder = Decoder()
        node.heard = now

    def report(self, name: str, report: dict[str, Any], now: float) -> None:
        """Take over what an agent sent. Raises FormatError where it is no report of a node that has joined."""
        node = self._nodes.get(name)
        if node is None:
            raise CorruptDataError(
                f"a report of node {name!r}, which was forgotten", advice="let its agent connect again"
            )
        before = node.decoder.num_integers
        node.decoder.apply(report)
        self._num_integers += node.decoder.num_integers - before
        if self._num_integers > _MAX_INTEGERS:
            raise LimitExceededError(f"the nodes of this job report more than {_MAX_INTEGERS} numbers")
        node.heard = now
        node.is_new = True

    def node_of(self, rank: int) -> str | None:
        """The node that a rank of the last observation is on."""
        for name, node in self._nodes.items():
            if any(known.rank == rank for known in node.ranks):
                return name
        return None

    def observe(self, now: float) -> Observation:
        """The job as the last reports tell it."""
        changed: set[int] = set()
        with no_collection():
            for name, node in list(self._nodes.items()):
                if now - node.heard > _FORGOTTEN_SECONDS:
                    changed.update(rank.rank for rank in node.ranks)
                    self._num_integers -= self._nodes.pop(name).decoder.num_integers
                elif node.is_new:
                    changed.update(rank.rank for rank in node.ranks)
                    node.ranks = list(node.decoder.ranks(name, now - node.heard))
                    node.edges = list(node.decoder.edges())
                    changed.update(rank.rank for rank in node.ranks)
                    node.is_new = False
            ranks: dict[int, Rank] = {}
            for node in self._nodes.values():
                for rank in node.ranks:
                    known = ranks.get(rank.rank)
                    if known is None or _supersedes(rank, known):
                        ranks[rank.rank] = rank
        edges = [edge for node in self._nodes.values() for edge in node.edges]
        self._pair(edges)
        silent = sorted(name for name, node in self._nodes.items() if now - node.heard > _SILENT_SECONDS)
        return Observation(now, self.run_id, _world_size(ranks.values()), ranks, edges, silent, changed)

    def _pair(self, edges: list[Edge]) -> None:
        """Name the peers of connections whose ends are on two nodes: one end's local address is the other's remote."""
        external = [edge for edge in edges if edge.peer < 0 and "/" not in edge.local]  # no namespace of one node
        unpaired = [edge for edge in external if (edge.local, edge.remote) not in self._peers]
        if unpaired:
            if len(self._peers) > 4 * len(edges):
                self._peers.clear()
            owners = {edge.local: edge.rank for edge in external}
            for edge in unpaired:
                peer = owners.get(edge.remote)
                if peer is not None:
                    self._peers[edge.local, edge.remote] = peer
        for edge in external:
            edge.peer = self._peers.get((edge.local, edge.remote), -1)


def _supersedes(rank: Rank, known: Rank) -> bool:
    """A rank that was restarted on another node leaves a page on the first."""
    return (rank.generation, rank.process.gone_seconds is None) > (known.generation, known.process.gone_seconds is None)


def _world_size(ranks: Iterable[Rank]) -> int:
    sizes = Counter(rank.world_size for rank in ranks)
    return max(sizes, key=lambda size: (sizes[size], size)) if sizes else 0


@contextmanager
def no_collection() -> Iterator[None]:
    """Many objects at once, no cycles: the collector would go over all of them several times for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
