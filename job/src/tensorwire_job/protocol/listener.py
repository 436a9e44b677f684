"""The analyzer's end of all connections: accepts agents, and keeps those out that would fill or stall it."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tensorwire._ground.copies import not_copied

from .connection import Connection, RefusedError

_MAX_CONNECTIONS: Final = 8192
_MAX_UNAUTHENTICATED: Final = 256  # connections that have not shown the key
_MAX_UNAUTHENTICATED_PER_HOST: Final = 64
_GREETING_SECONDS: Final = 5.0
_QUIET_SECONDS: Final = 30.0  # an agent sends something every second
_ACCEPTED_AT_ONCE = 64
_OTHER_DESCRIPTORS = 64  # that the process needs besides


@dataclass(frozen=True, slots=True)
class Event:
    """Messages that arrived from an agent; None once the connection has ended."""

    connection: Connection
    messages: list[dict[str, Any]] | None


class Listener:
    """Takes messages from any number of agents. For one thread.

    Args:
        host: the address to bind; loopback unless the caller wants others in.
        port: 0 for any free one, see `address`.

    Raises OSError where the address cannot be bound.
    """

    __reduce_ex__ = not_copied("sockets", "listen in one place")

    def __init__(self, key: bytes, host: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._server = socket.create_server((host, port), family=family, backlog=1024)
        self._server.setblocking(False)
        self._key = key
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._hosts: dict[Connection, str] = {}  # of every connection, the oldest first
        self._unauthenticated: dict[Connection, str] = {}
        self._max_connections = _room()
        self._swept = time.monotonic()
        self.num_refused = 0  # connections dropped for what they sent, or did not send

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.getsockname()[:2]
        return host, port

    def close(self) -> None:
        for connection in self._hosts:
            connection.close()
        self._server.close()
        self._selector.close()

    def poll(self, seconds: float) -> Iterator[Event]:
        """Wait at most so long for an event, and give those that came."""
        for key, ready in self._selector.select(max(0.0, seconds)):
            connection = key.data
            if connection is None:
                self._accept()
            elif connection in self._hosts:  # serving another connection may have dropped it
                yield from self._serve(connection, ready)
        now = time.monotonic()
        if now - self._swept >= 1.0:
            self._swept = now
            yield from self._sweep(now)

    def send(self, connection: Connection, message: dict[str, Any]) -> None:
        """Send to an agent. A connection that does not take the message ends, as `poll` will tell."""
        if connection not in self._hosts:
            return
        try:
            connection.send(message)
        except (RefusedError, OSError):
            connection.last_heard = 0.0  # the next sweep drops it
            return
        self._watch(connection)

    def drop(self, connection: Connection) -> None:
        """End a connection for what it sent."""
        self.num_refused += 1
        self._forget(connection)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connected, address = self._server.accept()
            except OSError:  # no more at present
                return
            host = address[0]
            of_host = Counter(self._unauthenticated.values())[host] if self._unauthenticated else 0
            if len(self._hosts) >= self._max_connections:
                connected.close()
                self.num_refused += 1
                continue
            if of_host >= _MAX_UNAUTHENTICATED_PER_HOST:
                self.drop(next(waiting for waiting, known in self._unauthenticated.items() if known == host))
            elif len(self._unauthenticated) >= _MAX_UNAUTHENTICATED:
                self.drop(next(iter(self._unauthenticated)))
            try:
                connection = Connection(connected, self._key, is_server=True)
            except OSError:  # gone already
                connected.close()
                continue
            self._hosts[connection] = self._unauthenticated[connection] = host
            self._selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _serve(self, connection: Connection, ready: int) -> Iterator[Event]:
        try:
            if ready & selectors.EVENT_WRITE:
                connection.flush()
            messages = connection.receive() if ready & selectors.EVENT_READ else []
        except RefusedError:
            self.num_refused += 1
            yield from self._end(connection)
            return
        except OSError:
            yield from self._end(connection)
            return
        if messages:
            self._unauthenticated.pop(connection, None)
            yield Event(connection, messages)
        if connection in self._hosts:
            self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_output else 0)
        if self._selector.get_key(connection).events != events:
            self._selector.modify(connection, events, connection)

    def _sweep(self, now: float) -> Iterator[Event]:
        late = [c for c in self._unauthenticated if now - c.opened > _GREETING_SECONDS]
        quiet = [c for c in self._hosts if now - c.last_heard > _QUIET_SECONDS]
        for connection in {*late, *quiet}:
            self.num_refused += 1
            yield from self._end(connection)

    def _end(self, connection: Connection) -> Iterator[Event]:
        known = connection not in self._unauthenticated
        self._forget(connection)
        if known:
            yield Event(connection, None)

    def _forget(self, connection: Connection) -> None:
        self._selector.unregister(connection)
        connection.close()
        del self._hosts[connection]
        self._unauthenticated.pop(connection, None)


def _room() -> int:
    """How many connections the process may have, after asking for as many as it can get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_CONNECTIONS + _OTHER_DESCRIPTORS
    if soft == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(_MAX_CONNECTIONS, max(soft - _OTHER_DESCRIPTORS, 1))
