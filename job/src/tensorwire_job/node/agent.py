"""The agent: it watches the ranks of one node for the analyzer, and does there what the analyzer asks for."""

from __future__ import annotations

import random
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tensorwire._ground.copies import not_copied
from tensorwire.errors import TensorwireError

from ..protocol.connection import Connection, RefusedError
from ..protocol.encoding import Encoder
from .local_node import LocalNode

if TYPE_CHECKING:
    from ..model import Observation

_INTERVAL_SECONDS: Final = 1.0
JITTER: Final = (0.75, 1.25)  # polls in step with something that goes on and off would see only one of the two
_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 10.0  # for the analyzer to show that it has the key
_BACKOFF_SECONDS = (0.5, 30.0)
_MAX_RANKS_ASKED = 64


class Agent:
    """Sends what a node does to the analyzer, once a second, and comes back to it when it was away. For one thread.

    Args:
        address: host and port of the analyzer.
        key: from :func:`connection.read_key`.
        log: told about connections made and lost.
    """

    __reduce_ex__ = not_copied("a connection", "make another one")

    def __init__(self, node: LocalNode, address: tuple[str, int], key: bytes, log: Callable[[str], None]) -> None:
        self._node = node
        self._address = address
        self._key = key
        self._log = log
        self._connection: Connection | None = None
        self._encoder = Encoder()
        self._is_welcome = False
        self._backoff = _BACKOFF_SECONDS[0]
        self._retry_at = 0.0
        self._trouble = ""
        self._is_timing = False
        self._run_id = ""  # as the analyzer was told

    def step(self) -> None:
        """Sample the node and report; then wait, and do what the analyzer asks for, until the next poll is due."""
        due = time.monotonic() + _INTERVAL_SECONDS * random.uniform(*JITTER)
        observation = self._node.observe()
        if self._connection is not None and observation.run_id not in ("", self._run_id):
            self._lose("another run began on this node")
        if self._connection is None and observation.run_id and time.monotonic() >= self._retry_at:
            self._connect(observation.run_id)
        try:
            self._send(observation)
            while (left := due - time.monotonic()) > 0:
                self._listen(left)
        except (TensorwireError, OSError) as error:
            self._lose(str(error))
            time.sleep(max(0.0, due - time.monotonic()))

    def close(self) -> None:
        """Stop timing, if the analyzer has asked for it."""
        self._disable_timing()
        if self._connection is not None:
            self._connection.close()

    def _connect(self, run_id: str) -> None:
        try:
            connected = socket.create_connection(self._address, timeout=_CONNECT_SECONDS)
            self._connection = Connection(connected, self._key, is_server=False)
            self._connection.send({"type": "hello", "node": self._node.name, "run": run_id})
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        self._encoder = Encoder()
        self._is_welcome = False
        self._run_id = run_id

    def _lose(self, reason: str) -> None:
        self._disable_timing()  # an analyzer that comes back asks again if it still wants to know
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        # Not all agents at once, when an analyzer comes back to thousands of them.
        self._retry_at = time.monotonic() + self._backoff * random.uniform(0.5, 1.0)
        self._backoff = min(self._backoff * 2, _BACKOFF_SECONDS[1])
        if reason != self._trouble:
            self._trouble = reason
            self._log(f"no analyzer at {self._address[0]}:{self._address[1]}: {reason}; trying again")

    def _send(self, observation: Observation) -> None:
        if self._connection is None or not self._is_welcome:
            return
        for rank, text in self._node.stacks().items():
            self._connection.send({"type": "stack", "rank": rank, "text": text})
        self._connection.send({"type": "report", **self._encoder.report(observation)})

    def _listen(self, seconds: float) -> None:
        connection = self._connection
        if connection is None:
            time.sleep(seconds)
            return
        if not self._is_welcome and time.monotonic() - connection.opened > _ANSWER_SECONDS:
            raise RefusedError("the analyzer does not answer")
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_output else 0)
        with selectors.DefaultSelector() as selector:
            selector.register(connection, events)
            for _, ready in selector.select(seconds):
                if ready & selectors.EVENT_WRITE:
                    connection.flush()
                if ready & selectors.EVENT_READ:
                    for message in connection.receive():
                        self._act(message)

    def _act(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "welcome":
            self._is_welcome = True
            self._backoff, self._trouble = _BACKOFF_SECONDS[0], ""
            self._log(f"connected to the analyzer at {self._address[0]}:{self._address[1]}")
        elif kind == "refused":
            raise RefusedError(str(message.get("reason"))[:256])
        elif kind == "timing":
            first, num_rounds = message.get("first"), message.get("rounds")
            if (
                type(first) is not dict
                or type(num_rounds) is not int
                or any(type(n) is not int for n in first.values())
            ):
                raise RefusedError("expected sequence numbers by process group, and a number of rounds")
            self._enable_timing(first, num_rounds)
        elif kind == "stacks":
            ranks = message.get("ranks")
            if type(ranks) is not list or any(type(rank) is not int for rank in ranks):
                raise RefusedError("expected a list of ranks")
            for rank in ranks[:_MAX_RANKS_ASKED]:
                self._node.request_stack(rank)

    def _enable_timing(self, first: dict[str, int], num_rounds: int) -> None:
        self._is_timing = bool(first)
        try:
            self._node.enable_timing(first, num_rounds)
        except (ValueError, OSError) as error:
            self._log(f"operations cannot be timed: {error}")

    def _disable_timing(self) -> None:
        """Stop timing, which costs every operation something, once no reader asks for it any more."""
        if self._is_timing:
            self._enable_timing({}, 0)


def run_agent(directory: Path, address: tuple[str, int], key: bytes, *, node: str, log: Callable[[str], None]) -> None:
    """Report on the ranks whose pages are in `directory` until the process ends.

    Args:
        node: name of this node; the analyzer takes no second agent of one name.
    """
    local = LocalNode(directory, node)
    agent = Agent(local, address, key, log)
    try:
        while True:
            agent.step()
    finally:
        agent.close()
        local.close()
