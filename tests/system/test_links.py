"""Links between namespaces have the rate that they are given, and count what passes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import links

NBYTES = 2_000_000
RECEIVE = """
import socket, time
with socket.create_server(("10.77.0.2", 4000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    began, count = time.monotonic(), 0
    while data := connection.recv(1 << 16):
        count += len(data)
    print(count, time.monotonic() - began)
"""
SEND = f"""
import socket
with socket.create_connection(("10.77.0.2", 4000)) as connection:
    connection.sendall(bytes({NBYTES}))
"""


def sent_in(network: links.Network) -> float:
    """Seconds in which the bytes pass from rank 0 to rank 1."""
    line = network.inside(1, [sys.executable, "-S", "-c", RECEIVE])
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        subprocess.run(network.inside(0, [sys.executable, "-S", "-c", SEND]), check=True)
        count, seconds = receiver.stdout.read().split()
    assert int(count) == NBYTES
    return float(seconds)


def test_a_link_has_its_rate_from_the_moment_on_that_it_gets_it_and_counts_what_passes() -> None:
    """With the headers. The namespace of a rank ends with the network."""
    if links.missing():
        pytest.skip(links.missing())
    with closing(links.Network(2)) as network:
        namespace = Path(f"/proc/{network.holders[0]}/ns/net")
        assert namespace.exists()
        network.set_rates(40)
        slow = sent_in(network)
        network.set_rates(None)
        before = [network.sent_nbytes(rank) for rank in range(2)]
        fast = sent_in(network)
        sent, acknowledged = (network.sent_nbytes(rank) - old for rank, old in enumerate(before))
    assert not namespace.exists()
    bits = 8 * (NBYTES - 1000 * links.TRAFFIC_BURST_KB)  # the burst passes at once
    assert slow > 0.95 * bits / 40e6
    assert fast < slow / 2
    assert NBYTES < sent < 1.1 * NBYTES
    assert acknowledged < 0.2 * NBYTES
