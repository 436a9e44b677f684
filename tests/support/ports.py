"""Ports for jobs that open them seconds later."""

from __future__ import annotations

import random
import socket

_PORTS = range(20_000, 32_000)  # below those that Linux gives to connections, of which jobs make many meanwhile


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no port is free")
