"""TCP connections as the kernel shows them, against sockets that are known to be in some state."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tensorwire_job.node.tcp import TcpReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorwire_job.model import Edge

ME = os.getpid()
PEER = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
time.sleep(60)
"""


@pytest.fixture
def reader() -> Iterator[TcpReader]:
    reader = TcpReader()
    yield reader
    reader.close()


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        server = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        client = socket.create_connection(server.getsockname()[:2])
        accepted = server.accept()[0]
        yield client, accepted
        client.close()
        accepted.close()


def end(reader: TcpReader, owner: socket.socket, rank: int = 3) -> Edge:
    """The connection whose near end is this socket."""
    port = f":{owner.getsockname()[1]}"
    (found,) = [c for c in reader.read({rank: ME}) if c.local.endswith(port)]
    return found


def test_both_ends_name_each_other(reader: TcpReader, pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = (end(reader, owner) for owner in pair)
    assert (near.local, near.remote) == (far.remote, far.local)
    assert near.rank == far.rank == 3
    assert "/" in near.local, "loopback is another one in each network namespace"


def test_bytes_and_queues(reader: TcpReader, pair: tuple[socket.socket, socket.socket]) -> None:
    client, accepted = pair
    client.sendall(bytes(5000))
    while len(accepted.recv(5000, socket.MSG_PEEK)) < 5000:
        time.sleep(0.001)
    accepted.recv(2000)
    near, far = end(reader, client), end(reader, accepted)
    assert near.acked_bytes in (5000, 5001)  # SYN is acknowledged too
    assert far.received_bytes == 5000
    assert far.receive_queue == 3000
    assert near.send_queue == near.receive_queue == near.backoff == near.retransmits == 0
    assert 0 < near.rtt_seconds < 1


def test_peer_that_does_not_read_fills_queues_and_keeps_the_sender_busy(reader: TcpReader) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted = server.accept()[0]
    with client, accepted:
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while select.select([], [client], [], 0.05)[1]:
                client.send(bytes(1 << 20))
        before = end(reader, client)
        time.sleep(0.5)
        near, far = end(reader, client), end(reader, accepted)
        assert near.send_queue > 0
        assert far.receive_queue > 100_000
        assert 0.3 < near.busy_seconds - before.busy_seconds < 2
        assert far.busy_seconds < 0.1


def test_connections_of_the_processes_asked_for_only(reader: TcpReader) -> None:
    host, port = "127.0.0.1", 0
    with socket.create_server((host, port)) as server:
        port = server.getsockname()[1]
        child = subprocess.Popen([sys.executable, "-S", "-c", PEER, host, str(port)], stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            child.stdout.readline()
            accepted = server.accept()[0]
            mine = {c.local for c in reader.read({0: ME})}
            assert any(local.endswith(f":{port}") for local in mine)
            both = reader.read({0: ME, 1: child.pid})
            theirs = [c for c in both if c.rank == 1]
            assert [c.remote.endswith(f":{port}") for c in theirs] == [True]
            assert {c.local for c in both if c.rank == 0} == mine
            child.kill()
            child.wait()
            assert all(c.rank == 0 for c in reader.read({0: ME, 1: child.pid}))
            accepted.close()
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


def test_new_and_closed_connections_are_followed(reader: TcpReader) -> None:
    before = len(reader.read({0: ME}))
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted = server.accept()[0]
        assert len(reader.read({0: ME})) == before + 2
        accepted.close()
        (left,) = [c for c in reader.read({0: ME}) if c.local.endswith(f":{client.getsockname()[1]}")]
        assert left.rank == 0, "an end whose peer has closed is still there"
        client.close()
    assert len(reader.read({0: ME})) == before


def test_nobody_has_no_connections(reader: TcpReader) -> None:
    assert reader.read({}) == []
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()
    assert reader.read({0: child.pid}) == []


def test_process_in_another_network_namespace(reader: TcpReader, pair: tuple[socket.socket, socket.socket]) -> None:
    code = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
accepted = server.accept()[0]
client.sendall(bytes(1000))
print(server.getsockname()[1], flush=True)
input()
"""
    unshare = shutil.which("unshare")
    if unshare is None or os.getuid() != 0:
        pytest.skip("needs root and unshare")
    command = [unshare, "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, "-S", "-c", code]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        if not line:
            pytest.skip("no network namespace can be made here")
        port = int(line)
        own = {c.local for c in reader.read({0: ME})}
        found = [c for c in reader.read({0: ME, 1: child.pid}) if c.rank == 1]
        assert sorted(c.received_bytes for c in found) == [0, 1000]
        assert any(c.local.endswith(f"127.0.0.1:{port}") for c in found)
        assert {c.local for c in reader.read({0: ME})} == own, "this process has stayed where it was"
        assert not {c.local for c in found} & own
    finally:
        child.stdin.close()
        child.stdout.close()
        child.kill()
        child.wait()
