"""The reports of all nodes, made one observation of the job."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorwire.errors import CorruptDataError, FormatError, LimitExceededError

from ..model import Observation
from ..protocol.decoding import Decoder
from ..protocol.encoding import micros
from ..protocol.report_columns import Descriptions, NodeRows, edge_columns, open_links, rank_columns

if TYPE_CHECKING:
    from ..columns import Ints

_SILENT_SECONDS: Final = 5.0  # an agent reports every second
_FORGOTTEN_SECONDS: Final = 3600.0  # since the last report of a node that is not heard of any more
MAX_NODES = 1 << 14
# The most of all nodes together: 128 for each of the most ranks that a job may have, 2,048 for each of 8 ranks on as
# many nodes as may connect. An integer takes at most 64 bytes, all of them 8 GiB.
MAX_INTEGERS = 1 << 27


@dataclass(slots=True)
class _Node:
    decoder: Decoder = field(default_factory=Decoder)
    heard: float = 0.0
    is_new: bool = False  # reported since the last observation
    rows: NodeRows | None = None  # of the last observation
    num_integers: int = 0  # of the decoder, or those that the rows rest on, if an agent that came anew has said less
    num_shown: int = 0  # that the rows rest on


class Nodes:
    """A job's nodes, as they report. Times are the caller's, of any clock that does not go back."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._nodes: dict[str, _Node] = {}
        self._num_integers = 0
        self._descriptions: Descriptions | None = None  # of the nodes that have rows; None: to be made
        self._links: Ints = np.zeros(0, np.int64)  # the connections of the last observation
        self._peers: dict[tuple[str, str], int] = {}  # of connections between nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def join(self, name: str, now: float) -> None:
        """An agent has connected; its next report is a full one. Raises LimitExceededError where there are too many."""
        if name not in self._nodes and len(self._nodes) >= MAX_NODES:
            raise LimitExceededError(f"more than {MAX_NODES} nodes report")
        node = self._nodes.setdefault(name, _Node())
        node.decoder = Decoder()
        node.heard = now
        self._count(node)

    def _count(self, node: _Node) -> None:
        before, node.num_integers = node.num_integers, max(node.decoder.num_integers, node.num_shown)
        self._num_integers += node.num_integers - before

    def report(self, name: str, report: dict[str, Any], now: float) -> None:
        """Take over what an agent sent. Raises FormatError where it is no report of a node that has joined."""
        node = self._nodes.get(name)
        if node is None:
            raise CorruptDataError(
                f"a report of node {name!r}, which was forgotten", advice="let its agent connect again"
            )
        decoder = node.decoder
        described = decoder.num_described
        try:
            decoder.apply(report)
        except FormatError:
            node.decoder = Decoder()  # half of it may have been taken over
            raise
        finally:
            self._count(node)
        if decoder.num_described != described or report.get("full"):
            self._descriptions = None
        if self._num_integers > MAX_INTEGERS:
            raise LimitExceededError(f"the nodes of this job report more than {MAX_INTEGERS} numbers")
        node.heard = now
        node.is_new = True

    def node_of(self, rank: int) -> str | None:
        """The node that a rank of the last observation is on."""
        for name, node in self._nodes.items():
            if rank in node.decoder.rank_rows:
                return name
        return None

    def observe(self, now: float) -> Observation:
        """The job as the last reports tell it."""
        with no_collection():
            return self._observe(now)

    def _observe(self, now: float) -> Observation:
        for name, node in list(self._nodes.items()):
            if now - node.heard > _FORGOTTEN_SECONDS:
                self._num_integers -= self._nodes.pop(name).num_integers
                self._descriptions = None
            elif node.is_new:
                node.rows = _rows(name, node.decoder, now - node.heard)
                node.is_new, node.num_shown = False, node.decoder.num_integers
                if node.num_integers != node.num_shown:
                    self._count(node)
        rows = [node.rows for node in self._nodes.values() if node.rows is not None]
        if self._descriptions is None:
            self._descriptions = Descriptions([node.known for node in rows])
            self._recall_peers(self._descriptions)
            self._links = np.zeros(0, np.int64)
        ranks, world_size = rank_columns(rows, self._descriptions)
        links = open_links(rows, self._descriptions)
        if not np.array_equal(links, self._links):
            self._pair(self._descriptions, links)
        self._links = links
        edges = edge_columns(rows, self._descriptions, links)
        silent = sorted(name for name, node in self._nodes.items() if now - node.heard > _SILENT_SECONDS)
        return Observation(now, self.run_id, world_size, ranks, edges, silent)

    def _recall_peers(self, descriptions: Descriptions) -> None:
        for number in descriptions.between_nodes:
            ends = descriptions.links[number][2:]
            descriptions.link_peers[number] = self._peers.get(ends, -1)

    def _pair(self, descriptions: Descriptions, links: Ints) -> None:
        """Name the peers of connections whose ends are on two nodes: one end's local address is the other's remote."""
        between = np.intersect1d(links, descriptions.between_nodes)
        unpaired = between[descriptions.link_peers[between] < 0].tolist()
        if not unpaired:
            return
        if len(self._peers) > 4 * len(links):
            self._peers.clear()
        described = (descriptions.links[number] for number in between.tolist())
        owners = {local: rank for rank, _, local, _ in described}
        for number in unpaired:
            _, _, local, remote = descriptions.links[number]
            peer = owners.get(remote)
            if peer is not None:
                self._peers[local, remote] = descriptions.link_peers[number] = peer


def _rows(name: str, decoder: Decoder, elapsed: float) -> NodeRows:
    now = decoder.clock + micros(elapsed)
    return NodeRows(name, now, decoder.snapshot(), *decoder.rank_rows.joined(), decoder.edge_rows.all())


@contextmanager
def no_collection() -> Iterator[None]:
    """Make many objects without cycles: the collector would go over all of them several times for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
