"""Messages between agents and the analyzer: what goes through, and everything that must not."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorwire_job.protocol import connection as connections
from tensorwire_job.protocol import listener as listening
from tensorwire_job.protocol.connection import Connection, RefusedError
from tensorwire_job.protocol.listener import Listener
from tests.support.waiting import wait_for

KEY = b"0123456789abcdef0123456789abcdef"
GREETING = b"TWDIAG\x00\x01"


_opened: list[socket.socket | Connection | Listener] = []


@pytest.fixture(autouse=True)
def closes_all() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        _opened.append(client)
        connected = server.accept()[0]
        _opened.append(connected)
        return client, connected


def exchange(*ends: Connection) -> list[list[dict[str, Any]]]:
    """Let both ends talk until nothing more comes; what each received."""
    heard: list[list[dict[str, Any]]] = [[] for _ in ends]
    for _ in range(200):
        for end, messages in zip(ends, heard, strict=True):
            end.flush()
            messages += end.receive()
        time.sleep(0.001)
    return heard


@pytest.fixture
def pair() -> tuple[Connection, Connection]:
    client, server = tcp_pair()
    return Connection(client, KEY, is_server=False), Connection(server, KEY, is_server=True)


def test_messages_of_all_sizes_arrive_in_order(pair: tuple[Connection, Connection]) -> None:
    client, server = pair
    messages = [{"n": 0}, *({"n": n, "text": "ü" * 7**n} for n in range(1, 8))]
    for message in messages:
        client.send(message)
    server.send({"type": "welcome"})
    to_client, to_server = exchange(client, server)
    assert to_server == messages
    assert to_client == [{"type": "welcome"}]
    assert client.is_authentic
    assert server.is_authentic


class Recorded:
    """A client made by hand, so that it can misbehave: it knows the protocol, and the key or another one."""

    def __init__(self, connected: socket.socket, key: bytes = KEY, nonce: bytes = b"n" * 32) -> None:
        self.socket = connected
        self.socket.settimeout(5)
        self.sent = 0
        self.socket.sendall(GREETING + nonce)
        greeting = b""
        while len(greeting) < 40:
            greeting += self.socket.recv(40 - len(greeting))
        assert greeting[:8] == GREETING
        self.server_nonce = greeting[8:]
        self.key = hmac.digest(key, b"client" + nonce + self.server_nonce, "sha256")

    def message(self, text: bytes, number: int | None = None) -> bytes:
        number = self.sent if number is None else number
        self.sent = number + 1
        tag = hmac.digest(self.key, struct.pack(">Q", number) + text, "sha256")
        return struct.pack(">I", len(text)) + tag + text

    def is_cut_off(self) -> bool:
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True


@pytest.fixture
def server_end() -> Callable[..., tuple[Recorded, Connection]]:
    def make(key: bytes = KEY) -> tuple[Recorded, Connection]:
        client, server = tcp_pair()
        connection = Connection(server, KEY, is_server=True)
        connection.flush()
        return Recorded(client, key), connection

    return make


def receive(connection: Connection) -> list[dict[str, Any]]:
    heard = []
    for _ in range(20):
        heard += connection.receive()
        time.sleep(0.001)
    return heard


def test_message_in_single_bytes(server_end: Callable[..., tuple[Recorded, Connection]]) -> None:
    client, connection = server_end()
    heard = []
    for byte in client.message(b'{"a":1}'):
        assert not heard
        client.socket.sendall(bytes([byte]))
        time.sleep(0.0005)
        heard += connection.receive()
    heard += receive(connection)
    assert heard == [{"a": 1}]


GOOD = b'{"type":"hello"}'


def reflected(client: Recorded) -> bytes:
    """Signed with the key of the other direction, as what the server sends is."""
    client.key = hmac.digest(KEY, b"server" + b"n" * 32 + client.server_nonce, "sha256")
    return client.message(GOOD)


REFUSED: dict[str, Callable[[Recorded], bytes]] = {
    "wrong_key": lambda client: client.message(GOOD),
    "replayed": lambda client: 2 * client.message(GOOD),
    "skipped": lambda client: client.message(GOOD) + client.message(GOOD, number=2),
    "swapped": lambda client: client.message(b'{"n":2}', number=1) + client.message(b'{"n":1}', number=0),
    "changed": lambda client: client.message(GOOD).replace(b"hello", b"hullo"),
    "reflected": reflected,
    "announced_huge": lambda client: struct.pack(">I", 0xFFFFFFFF) + bytes(64),
    "huge_first": lambda client: client.message(b'{"text":"' + b"x" * 70_000 + b'"}'),
    "not_json": lambda client: client.message(b"\x80\x04K\x01."),
    "not_an_object": lambda client: client.message(b"[1]"),
    "nested": lambda client: client.message(b'{"a":1}') + client.message(b'{"a":' + b"[" * 200_000),
}


@pytest.mark.parametrize("what", [*REFUSED, "other_connection", "not_the_protocol"])
def test_refused(what: str, server_end: Callable[..., tuple[Recorded, Connection]]) -> None:
    client, connection = server_end(b"x" * 32 if what == "wrong_key" else KEY)
    if what == "other_connection":
        data = server_end()[0].message(GOOD)
    elif what == "not_the_protocol":
        client.socket, server = tcp_pair()
        connection, data = Connection(server, KEY, is_server=True), b"GET / HTTP/1.1\r\n\r\n"
    else:
        data = REFUSED[what](client)
    client.socket.sendall(data)
    with pytest.raises(RefusedError):
        receive(connection)


def test_bytes_arrive_as_they_are(server_end: Callable[..., tuple[Recorded, Connection]]) -> None:
    client, connection = server_end()
    client.socket.sendall(client.message(b'{"n":1,"bytes":{"a":2,"b":0,"c":3}}\n\n\x00\xff\n{'))
    assert receive(connection) == [{"n": 1, "a": b"\n\x00", "b": b"", "c": b"\xff\n{"}]


@pytest.mark.parametrize(
    "text",
    [
        b'{"bytes":{"a":2}}\nx', b'{"bytes":{"a":1}}\nxy', b'{"bytes":{"a":-1,"b":2}}\nx', b'{"bytes":{"a":"1"}}\nx',
        b'{"bytes":{"a":1.0}}\nx', b'{"bytes":{"a":true}}\nx', b'{"bytes":[1]}\nx', b"{}\nx", b'{"a":\n1}',
        b'{"bytes":{"a":1' + b"0" * 400 + b"}}\nx",
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(text: bytes, server_end: Callable[..., tuple[Recorded, Connection]]) -> None:
    client, connection = server_end()
    client.socket.sendall(client.message(text))
    with pytest.raises(RefusedError):
        receive(connection)


def test_half_message_is_no_message(server_end: Callable[..., tuple[Recorded, Connection]]) -> None:
    client, connection = server_end()
    client.socket.sendall(client.message(b'{"a":1}')[:-1])
    assert receive(connection) == []
    client.socket.close()
    with pytest.raises(ConnectionError):
        receive(connection)


def test_flood_of_messages_is_refused(server_end: Callable[..., tuple[Recorded, Connection]]) -> None:
    client, connection = server_end()
    client.socket.sendall(b"".join(client.message(b"{}") for _ in range(1000)))
    with pytest.raises(RefusedError, match="messages a second"):
        receive(connection)


def test_flood_of_bytes_is_refused(
    server_end: Callable[..., tuple[Recorded, Connection]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_BURST_NBYTES", 1 << 20)
    client, connection = server_end()
    client.socket.sendall(client.message(b"{}"))
    receive(connection)
    text = json.dumps({"text": "x" * (1 << 19)}).encode()
    client.socket.setblocking(False)

    def flood() -> None:
        for _ in range(200):
            data = client.message(text)
            while data:
                with contextlib.suppress(BlockingIOError):
                    data = data[client.socket.send(data) :]
                receive(connection)

    with pytest.raises(RefusedError, match="bytes"):
        flood()


def test_peer_that_never_reads_does_not_block(pair: tuple[Connection, Connection]) -> None:
    client, server = pair
    client.send({})
    exchange(client, server)
    start = time.monotonic()

    def fill() -> None:
        for _ in range(200):
            server.send({"text": "x" * (1 << 20)})

    with pytest.raises(RefusedError, match="does not read"):
        fill()
    assert time.monotonic() - start < 10


def test_nonces_differ() -> None:
    nonces = set()
    for _ in range(8):
        client, server = tcp_pair()
        connection = Connection(server, KEY, is_server=True)
        connection.flush()
        nonces.add(client.recv(40))
    assert len(nonces) == 8


# Key files.


def key_file(path: Path, content: bytes = KEY, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_private_key_is_read(tmp_path: Path) -> None:
    content = bytes(range(32))  # blanks and line ends among them
    assert connections.read_key(key_file(tmp_path / "key", content)) == content


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o777])
def test_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ValueError, match="chmod 600"):
        connections.read_key(key_file(tmp_path / "key", mode=mode))


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 5000])
def test_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match="16 to 4096 bytes"):
        connections.read_key(key_file(tmp_path / "key", content))


def test_pipe_is_no_key_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    os.mkfifo(path, 0o600)
    with pytest.raises(ValueError, match="regular file"):
        connections.read_key(path)


# The listener.


@pytest.fixture
def server() -> Iterator[Listener]:
    listener = Listener(KEY)
    yield listener
    listener.close()


def serve(listener: Listener, seconds: float) -> list[listening.Event]:
    events = []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        events += listener.poll(min(left, 0.02))
    return events


def connect_unauthenticated(listener: Listener) -> socket.socket:
    connected = socket.create_connection(listener.address)
    _opened.append(connected)
    return connected


def connect(listener: Listener, key: bytes = KEY) -> Connection:
    connection = Connection(connect_unauthenticated(listener), key, is_server=False)
    _opened.append(connection)
    connection.send({"type": "hello"})
    return connection


def test_listens_on_loopback_unless_told(server: Listener) -> None:
    assert server.address[0] == "127.0.0.1"


def test_listener_hears_and_answers(server: Listener) -> None:
    client = connect(server)
    serve(server, 0.05)
    client.receive()
    (event,) = serve(server, 0.05)
    assert event.messages == [{"type": "hello"}]
    server.send(event.connection, {"type": "welcome"})
    serve(server, 0.02)
    assert client.receive() == [{"type": "welcome"}]
    client.close()
    assert [event.messages for event in serve(server, 0.05)] == [None]
    assert len(server._hosts) == 0


def test_wrong_key_is_dropped_and_others_are_heard(server: Listener) -> None:
    bad, good = connect(server, b"y" * 32), connect(server)
    serve(server, 0.05)
    bad.receive()
    good.receive()
    events = serve(server, 0.05)
    assert [event.messages for event in events] == [[{"type": "hello"}]]
    assert server.num_refused == 1
    assert len(server._hosts) == 1


def test_unauthenticated_connections_that_say_nothing_make_room(
    server: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_MAX_UNAUTHENTICATED_PER_HOST", 8)
    for _ in range(50):
        connect_unauthenticated(server)
    serve(server, 0.05)
    assert len(server._hosts) == 8
    client = connect(server)
    serve(server, 0.05)
    client.receive()
    assert [event.messages for event in serve(server, 0.05)] == [[{"type": "hello"}]]


def test_unauthenticated_connection_that_waits_is_dropped(server: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    connect_unauthenticated(server).sendall(GREETING[:5])
    serve(server, 0.1)
    assert len(server._hosts) == 1
    monkeypatch.setattr(listening, "_GREETING_SECONDS", 0.05)
    wait_for(lambda: not serve(server, 0.01) and len(server._hosts) == 0)


def test_no_more_connections_than_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (68, 68))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    listener = Listener(KEY)
    _opened.append(listener)
    for _ in range(10):
        connect_unauthenticated(listener)
    serve(listener, 0.05)
    assert (len(listener._hosts), listener.num_refused) == (4, 6)


def test_random_bytes_never_stop_the_listener(server: Listener) -> None:
    for seed in range(40):
        prefix = GREETING + bytes(32) if seed % 2 else b""
        connect_unauthenticated(server).sendall(prefix + os.urandom(1 + 37 * seed))
        serve(server, 0.005)
    client = connect(server)
    serve(server, 0.05)
    client.receive()
    assert serve(server, 0.05)[-1].messages == [{"type": "hello"}]
