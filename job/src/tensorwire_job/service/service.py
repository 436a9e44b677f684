"""The analyzer as a service: observations in, findings out, and requests to the nodes."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tensorwire.errors import TensorwireError

from ..model import Finding, Observation, Thresholds
from ..node.local_node import LocalNode
from .controller import Controller
from .merge import Nodes
from .time_share import TimeShare

if TYPE_CHECKING:
    from ..protocol.connection import Connection
    from ..protocol.listener import Listener
    from .controller import Decision
    from .journal import Journal

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS: Final = 1.0
MAX_SHARE: Final = 0.03  # of the time goes into analysis: of very large jobs it is done less often than once a second
_TAKEN_SECONDS: Final = 3.0  # an agent that was silent for longer has died without closing its connection
_MAX_STACK = 1 << 16
_MAX_NAME = 256


class LocalJob:
    """Agent and analyzer in one process, for a job whose ranks are all on this machine. For one thread.

    Args:
        directory: where the probes of the job write.
    """

    def __init__(self, directory: Path, thresholds: Thresholds | None = None) -> None:
        self._node = LocalNode(directory, socket.gethostname())
        self._controller = Controller(thresholds or Thresholds())

    def poll(self) -> tuple[Observation, list[Finding]]:
        """Observe the job now; the findings are in this observation and all before. Takes milliseconds."""
        for rank, text in self._node.stacks().items():
            self._controller.add_stack(rank, text)
        observation = self._node.observe()
        decision = self._controller.decide(observation)
        if decision.timing is not None:
            try:
                self._node.enable_timing(decision.timing.first, decision.timing.num_rounds)
            except OSError as error:  # hangs show without times
                _log.warning("operations cannot be timed: %s", error)
        for rank in decision.stacks_of:
            self._node.request_stack(rank)
        return observation, decision.findings

    @property
    def awaits_stacks(self) -> bool:
        """Whether a suspect's stack is on its way: another `poll`, a moment later, may have it."""
        return bool(self._controller.asked)

    def close(self) -> None:
        """Stop timing, if it was asked for."""
        if self._controller.timing.first:
            with suppress(OSError):
                self._node.enable_timing({}, 0)
        self._node.close()


@dataclass(slots=True)
class Counters:
    """The service's numbers about itself."""

    num_reports: int = 0
    num_refused: int = 0  # connections ended for what they sent, or did not send
    num_agents: int = 0
    lag_seconds: float = 0.0  # by how much the last analysis was later than it should have been
    analysis_seconds: float = 0.0  # that it took


@dataclass(slots=True)
class View:
    """The last observation, and the findings in it."""

    observation: Observation
    findings: list[Finding] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)


class JobService:
    """The analyzer of a job whose agents come by network. For one thread.

    Args:
        listener: where they come.
        journal: observations and findings are written there; None: nowhere.
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
        self._controller = Controller(self._thresholds)

    def step(self) -> View:
        """Take reports until the next analysis is due, and do it."""
        while (left := self._due - time.monotonic()) > 0:
            self._take(left)
        self._take(0.0)  # reports that have arrived must not wait because there is much to do
        start = time.monotonic()
        observation = self._nodes.observe(start)
        decision = self._controller.decide(observation)
        self._carry_out(decision)
        findings = decision.findings
        end = time.monotonic()
        counters = self._counters
        counters.lag_seconds, counters.analysis_seconds = start - self._due, end - start
        counters.num_refused, counters.num_agents = self._listener.num_refused, len(self._agents)
        view = View(observation, findings, counters)
        self._keep(lambda journal: journal.write(observation, findings))
        self._due = max(start + _INTERVAL_SECONDS, end + self._share.rest_after(end - start))
        return view

    def _carry_out(self, decision: Decision) -> None:
        if decision.timing is not None:
            for connection in self._names:
                self._send_timing(connection)
        for rank in decision.stacks_of:
            agent = self._agents.get(self._nodes.node_of(rank) or "")
            if agent is not None:
                self._listener.send(agent, {"type": "stacks", "ranks": [rank]})

    def _send_timing(self, connection: Connection) -> None:
        timing = self._controller.timing
        self._listener.send(connection, {"type": "timing", "first": timing.first, "rounds": timing.num_rounds})

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
        if self._controller.timing.first:
            self._send_timing(connection)
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
        """Write to the journal. A full disk is no reason to stop watching."""
        if self._journal is None:
            return
        try:
            write(self._journal)
            self._trouble = ""
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("the recording cannot be written: %s", error)

    def _refuse(self, connection: Connection, reason: str) -> None:
        self._listener.send(connection, {"type": "refused", "reason": reason})
        self._listener.drop(connection)
        self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        name = self._names.pop(connection, None)
        if name is not None and self._agents.get(name) is connection:
            del self._agents[name]


def run_analyzer(service: JobService, show: Callable[[View], None]) -> None:
    """Serve until the process ends; `show` gets a view about once a second."""
    try:
        while True:
            show(service.step())
    finally:
        service.close()
