"""The analyzer as a service: observations in, findings out, and its wishes carried to the nodes."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...errors import TensorwireError
from ..analyzer import Analyzer
from ..model import Finding, Observation, Thresholds
from ..node.local_node import LocalNode
from .merge import Nodes, no_collection
from .time_share import TimeShare

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from ..protocol.connection import Connection
    from ..protocol.listener import Listener
    from .journal import Journal

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS: Final = 1.0
_ASK_AGAIN_SECONDS: Final = 30.0  # for a stack
MAX_SHARE: Final = 0.03  # of the time goes into analysis: of very large jobs it is done less often than once a second
_TAKEN_SECONDS: Final = 3.0  # an agent that was silent for longer has died without closing its connection
_MIN_ROUNDS = 12
_WINDOW = 0.1  # of slow_seconds
_MAX_STACK = 1 << 16
_MAX_NAME = 256


class NodeInterface(Protocol):
    """Who does on the nodes what the analyzer wants."""

    def enable_timing(self, first: dict[str, int], num_rounds: int) -> None:
        """Have all ranks time windows of rounds from these sequence numbers on, by communicator; {}: stop it."""

    def request_stack(self, rank: int) -> None:
        """Have a rank's stack brought, later."""


class Controller:
    """Puts observations before the analyzer, and its wishes to the nodes."""

    def __init__(self, thresholds: Thresholds, nodes: NodeInterface) -> None:
        self._analyzer = Analyzer(thresholds)
        self._nodes = nodes
        self._thresholds = thresholds
        self._timed: tuple[dict[str, int], int] = {}, 0
        self._asked: dict[int, float] = {}

    @property
    def timed(self) -> tuple[dict[str, int], int]:
        """What the nodes were last told to time."""
        return self._timed

    def look(self, observation: Observation) -> list[Finding]:
        with no_collection():
            findings = self._analyzer.update(observation)
        wanted = self._analyzer.wants_timing() or {}
        if wanted != self._timed[0]:
            self._timed = dict(wanted), self._num_rounds(observation, wanted) if wanted else 0
            try:
                self._nodes.enable_timing(*self._timed)
            except OSError as error:  # hangs show without times
                _log.warning("operations cannot be timed: %s", error)
        now = observation.time
        self._asked = {rank: time for rank, time in self._asked.items() if now - time < _ASK_AGAIN_SECONDS}
        for rank in self._analyzer.wants_stacks():
            if rank not in self._asked:
                self._asked[rank] = now
                self._nodes.request_stack(rank)
        return findings

    def _num_rounds(self, observation: Observation, wanted: dict[str, int]) -> int:
        """Of a window: so many that agents, which look once a second, see the same one of all ranks; and that the
        analyzer, which compares a few times in slow_seconds, has a new one each time."""
        rates = [
            group.baseline_rate
            for rank in observation.ranks.values()
            for group in rank.communicators
            if group.id in wanted and group.baseline_rate
        ]
        now = min(rates, default=0.0) / self._thresholds.slow_factor
        return max(_MIN_ROUNDS, round(now * self._thresholds.slow_seconds * _WINDOW))

    def add_stack(self, rank: int, text: str) -> None:
        self._asked.pop(rank, None)
        self._analyzer.add_stack(rank, text)

    @property
    def asked(self) -> Collection[int]:
        """The ranks that were asked for their stacks of late and have not answered."""
        return self._asked.keys()


class LocalJob:
    """Agent and analyzer in one process, for a job whose ranks are all on this machine. For one thread.

    Args:
        directory: where the probes of the job write.
    """

    def __init__(self, directory: Path, thresholds: Thresholds | None = None) -> None:
        self._node = LocalNode(directory, socket.gethostname())
        self._controller = Controller(thresholds or Thresholds(), self._node)

    def poll(self) -> tuple[Observation, list[Finding]]:
        """What there is to see now, and what is found in it and all before. Takes milliseconds."""
        for rank, text in self._node.stacks().items():
            self._controller.add_stack(rank, text)
        observation = self._node.observe()
        return observation, self._controller.look(observation)

    @property
    def awaits_stacks(self) -> bool:
        """A suspect's stack is on its way: another `poll`, a moment later, may have it."""
        return bool(self._controller.asked)

    def close(self) -> None:
        """Stop timing, if it was asked for."""
        if self._controller.timed[0]:
            with suppress(OSError):
                self._node.enable_timing({}, 0)
        self._node.close()


@dataclass(slots=True)
class Counters:
    """What the service says of itself."""

    num_reports: int = 0
    num_refused: int = 0  # connections ended for what they sent, or did not send
    num_agents: int = 0
    lag_seconds: float = 0.0  # by how much the last analysis was later than it should have been
    analysis_seconds: float = 0.0  # that it took


@dataclass(slots=True)
class View:
    """What was seen last, and what is found in it."""

    observation: Observation
    findings: list[Finding] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)


class JobService:
    """The analyzer of a job whose agents come by network. For one thread.

    Args:
        listener: where they come.
        journal: what is seen and found is written there; None: nowhere.
    """

    def __init__(self, listener: Listener, thresholds: Thresholds, journal: Journal | None = None) -> None:
        self._listener = listener
        self._thresholds = thresholds
        self._journal = journal
        self._agents: dict[str, Connection] = {}
        self._names: dict[Connection, str] = {}
        self._trouble = ""  # with the journal
        self._counters = Counters()
        self._due = time.monotonic()
        self._share = TimeShare(MAX_SHARE)
        self._begin("")

    def _begin(self, run_id: str) -> None:
        self._nodes = Nodes(run_id)
        self._controller = Controller(self._thresholds, self)

    def step(self) -> View:
        """Take reports until the next analysis is due, and do it."""
        while (left := self._due - time.monotonic()) > 0:
            self._take(left)
        self._take(0.0)  # what has arrived must not wait because there is much to do
        start = time.monotonic()
        observation = self._nodes.observe(start)
        findings = self._controller.look(observation)
        end = time.monotonic()
        counters = self._counters
        counters.lag_seconds, counters.analysis_seconds = start - self._due, end - start
        counters.num_refused, counters.num_agents = self._listener.num_refused, len(self._agents)
        view = View(observation, findings, counters)
        self._keep(lambda journal: journal.write(observation, findings))
        self._due = max(start + _INTERVAL_SECONDS, end + self._share.rest_after(end - start))
        return view

    def enable_timing(self, first: dict[str, int], num_rounds: int) -> None:
        for connection in self._names:
            self._listener.send(connection, {"type": "timing", "first": first, "rounds": num_rounds})

    def request_stack(self, rank: int) -> None:
        connection = self._agents.get(self._nodes.node_of(rank) or "")
        if connection is not None:
            self._listener.send(connection, {"type": "stacks", "ranks": [rank]})

    def close(self) -> None:
        self._listener.close()
        self._keep(lambda journal: journal.close())

    def _take(self, seconds: float) -> None:
        for event in self._listener.poll(seconds):
            name = self._names.get(event.connection)
            if event.messages is None:
                self._leave(event.connection)
                continue
            try:
                for message in event.messages:
                    if name is None:
                        name = self._join(event.connection, message)
                    else:
                        self._hear(name, message)
            except TensorwireError as error:
                self._refuse(event.connection, str(error))

    def _join(self, connection: Connection, message: dict[str, Any]) -> str:
        name, run_id = message.get("node"), message.get("run")
        if type(name) is not str or type(run_id) is not str or not name or max(len(name), len(run_id)) > _MAX_NAME:
            raise TensorwireError("expected the name of a node and its run")
        if run_id != self._nodes.run_id:
            if self._agents:
                raise TensorwireError(
                    f"this analyzer is for run {self._nodes.run_id!r}, not {run_id!r}",
                    advice="start one for each job, and give torchrun the same --rdzv-id on all nodes of a job",
                )
            self._begin(run_id)
        now = time.monotonic()
        if name in self._agents:
            if now - self._agents[name].last_heard < _TAKEN_SECONDS:
                raise TensorwireError(f"node {name!r} has an agent already", advice="end it, or give this one a --node")
            self._listener.drop(self._agents[name])
            self._leave(self._agents[name])
        self._nodes.join(name, now)
        self._agents[name] = connection
        self._names[connection] = name
        self._listener.send(connection, {"type": "welcome"})
        first, num_rounds = self._controller.timed
        if first:
            self._listener.send(connection, {"type": "timing", "first": first, "rounds": num_rounds})
        return name

    def _hear(self, name: str, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "report":
            self._nodes.report(name, message, time.monotonic())
            self._counters.num_reports += 1
        elif kind == "stack":
            rank, text = message.get("rank"), message.get("text")
            if type(rank) is not int or type(text) is not str:
                raise TensorwireError("expected a rank and its stack")
            if rank in self._controller.asked and self._nodes.node_of(rank) == name:
                self._add_stack(rank, text[:_MAX_STACK])
        else:
            raise TensorwireError(f"an agent sent a message of unknown type {kind!r:.64}")

    def _add_stack(self, rank: int, text: str) -> None:
        self._controller.add_stack(rank, text)
        self._keep(lambda journal: journal.add_stack(rank, text))

    def _keep(self, write: Callable[[Journal], None]) -> None:
        """A full disk is no reason to stop watching."""
        if self._journal is None:
            return
        try:
            write(self._journal)
            self._trouble = ""
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("what is seen cannot be kept: %s", error)

    def _refuse(self, connection: Connection, reason: str) -> None:
        self._listener.send(connection, {"type": "refused", "reason": reason})
        self._listener.drop(connection)
        self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        name = self._names.pop(connection, None)
        if name is not None and self._agents.get(name) is connection:
            del self._agents[name]


def run_analyzer(service: JobService, show: Callable[[View], None]) -> None:
    """Serve until the process ends; `show` gets what was seen and found, about once a second."""
    try:
        while True:
            show(service.step())
    finally:
        service.close()
