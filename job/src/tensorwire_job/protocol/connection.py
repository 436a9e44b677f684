"""Messages between agents and the analyzer: JSON over TCP, each signed for this job and this moment.

Both ends send 8 bytes that name the protocol and a nonce of 32. Each direction has a key of its own, which comes of
both nonces and the key that both ends hold. A message is its length (4 bytes, big-endian), HMAC-SHA256 over its number
in that direction and its text, and the text. The text is a JSON object and, behind a newline, its members that are
bytes, one behind the other; the object has their sizes instead, by name, in "bytes". A connection thus refuses bytes
that were recorded earlier, sent back to where they came from, left out, changed or reordered. The key never crosses the
network. Nothing is encrypted.

An end that breaks the rules is disconnected. Before that it can take the memory of one message, which is small until
it has shown the key, and send bytes up to a rate.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import stat
import struct
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from tensorwire._ground.copies import not_copied
from tensorwire.errors import TensorwireError

MAX_MESSAGE_NBYTES: Final = 16 << 20
_MAX_FIRST_NBYTES = 1 << 16  # of a peer that has not shown the key yet
_MAX_WAITING_NBYTES = 32 << 20  # for a peer that does not read
_RATE_NBYTES = 8 << 20  # per second that a peer may send, after a first burst
_BURST_NBYTES = 64 << 20
_RATE_MESSAGES, _BURST_MESSAGES = 20, 200
_RECEIVE_NBYTES = 1 << 16  # a larger buffer would be mapped anew for each call

_GREETING = b"TWDIAG\x00\x01"
_NONCE_NBYTES = 32
_TAG_NBYTES = 32
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_KEY_NBYTES = range(16, 4097)
_SIZES = "bytes"


class RefusedError(TensorwireError):
    """The other end broke the protocol, does not have the key, or asks for too much. It is disconnected."""


def read_key(path: Path) -> bytes:
    """The key of a job, from a file that no other user can read.

    Raises:
        ValueError: others may read the file, or it holds no key.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would be waited for
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"key file {str(path)!r}: expected a regular file")
        if status.st_mode & 0o077:
            raise ValueError(f"key file {str(path)!r}: others may read or write it; chmod 600 it, or make a new key")
        key = file.read(_KEY_NBYTES.stop)
    if len(key) not in _KEY_NBYTES:
        raise ValueError(
            f"key file {str(path)!r}: expected {_KEY_NBYTES.start} to {_KEY_NBYTES.stop - 1} bytes, got {len(key)}; "
            "make one with: umask 077; head -c 32 /dev/urandom > FILE; and copy it to every node"
        )
    return key


class Connection:
    """One end of a connection: takes and gives messages, never waits. For one thread.

    Args:
        connected: a socket, which the connection takes over.
        key: from :func:`read_key`.
        is_server: which of the two ends this is.
    """

    __reduce_ex__ = not_copied("a socket", "connect again")

    def __init__(self, connected: socket.socket, key: bytes, *, is_server: bool) -> None:
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connected
        self._key = key
        self._is_server = is_server
        self._nonce = secrets.token_bytes(_NONCE_NBYTES)
        self._send_key = self._receive_key = b""  # until the other end's nonce is here
        self._num_sent = self._num_received = 0
        self._input = bytearray()
        self._output: deque[memoryview] = deque([memoryview(_GREETING + self._nonce)])
        self._waiting = len(self._output[0])
        self._unsent: list[bytes] = []  # before there is a key to sign them with
        self._credit = _Credit()
        self.opened = self.last_heard = time.monotonic()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_authentic(self) -> bool:
        """The other end has shown that it holds the key."""
        return self._num_received > 0

    @property
    def has_output(self) -> bool:
        return bool(self._output)

    def close(self) -> None:
        self._socket.close()

    def send(self, message: dict[str, Any]) -> None:
        """Send, or keep what does not fit into the socket for `flush`.

        Raises:
            RefusedError: the other end does not read.
            OSError: the connection is gone.
        """
        text = _to_text(message)
        if len(text) > MAX_MESSAGE_NBYTES:
            raise RefusedError(f"a message of {len(text)} bytes is longer than {MAX_MESSAGE_NBYTES}")
        self._waiting += _LENGTH.size + _TAG_NBYTES + len(text)
        if self._waiting > _MAX_WAITING_NBYTES:
            raise RefusedError(f"{self._waiting} bytes wait for a peer that does not read")
        if self._send_key:
            self._sign(text)
        else:
            self._unsent.append(text)
        self.flush()

    def _sign(self, text: bytes) -> None:
        tag = hmac.digest(self._send_key, _NUMBER.pack(self._num_sent) + text, "sha256")
        self._num_sent += 1
        self._output.append(memoryview(_LENGTH.pack(len(text)) + tag + text))

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it. Raises OSError if the connection is gone."""
        try:
            while self._output:
                sent = self._socket.send(self._output[0])
                self._waiting -= sent
                if sent == len(self._output[0]):
                    self._output.popleft()
                else:
                    self._output[0] = self._output[0][sent:]
        except (BlockingIOError, InterruptedError):
            return

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived since, possibly none.

        Raises:
            RefusedError: the other end broke the protocol.
            OSError: the connection is gone.
        """
        try:
            data = self._socket.recv(_RECEIVE_NBYTES)
        except (BlockingIOError, InterruptedError):
            return []
        if not data:
            raise ConnectionResetError("the other end closed the connection")
        self._credit.spend(len(data))
        self._input += data
        if not self._receive_key and not self._greet():
            return []
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _greet(self) -> bool:
        size = len(_GREETING) + _NONCE_NBYTES
        if self._input[: len(_GREETING)] != _GREETING[: len(self._input)]:
            raise RefusedError("expected the greeting of a tensorwire-job agent or analyzer of this version")
        if len(self._input) < size:
            return False
        other = bytes(self._input[len(_GREETING) : size])
        del self._input[:size]
        nonces = other + self._nonce if self._is_server else self._nonce + other  # the client's first
        client, server = (hmac.digest(self._key, name + nonces, "sha256") for name in (b"client", b"server"))
        self._send_key, self._receive_key = (server, client) if self._is_server else (client, server)
        for text in self._unsent:
            self._sign(text)
        self._unsent.clear()
        self.flush()
        return True

    def _next(self) -> dict[str, Any] | None:
        start = _LENGTH.size + _TAG_NBYTES
        if len(self._input) < start:
            return None
        size = _LENGTH.unpack_from(self._input)[0]
        limit = MAX_MESSAGE_NBYTES if self.is_authentic else _MAX_FIRST_NBYTES
        if size > limit:
            raise RefusedError(f"a message of {size} bytes is announced; {limit} is the limit")
        if len(self._input) < start + size:
            return None
        tag = bytes(self._input[_LENGTH.size : start])
        text = bytes(self._input[start : start + size])
        del self._input[: start + size]
        expected = hmac.digest(self._receive_key, _NUMBER.pack(self._num_received) + text, "sha256")
        if not hmac.compare_digest(tag, expected):
            raise RefusedError("a message is not signed with the key of this job", advice="use one key file everywhere")
        try:
            message = _from_text(text)
        except (ValueError, TypeError, RecursionError):
            raise RefusedError("expected a JSON object, and the bytes that it names") from None
        self._num_received += 1
        self.last_heard = time.monotonic()
        self._credit.spend(0)
        return message


def _to_text(message: dict[str, Any]) -> bytes:
    parts = {name: value for name, value in message.items() if isinstance(value, bytes)}
    if parts:
        message = {name: value for name, value in message.items() if name not in parts}
        message[_SIZES] = {name: len(part) for name, part in parts.items()}
    text = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    return b"".join((text, b"\n", *parts.values()))


def _from_text(text: bytes) -> dict[str, Any]:
    head, _, tail = text.partition(b"\n")
    message: dict[str, Any] = json.loads(head.decode())
    if type(message) is not dict:
        raise TypeError
    sizes = message.pop(_SIZES, {})
    start = 0
    for name, size in sizes.items() if type(sizes) is dict else ():
        if type(size) is not int or size < 0:
            raise TypeError
        message[name] = tail[start : start + size]
        start += size
    if start != len(tail):
        raise ValueError
    return message


class _Credit:
    """The allowance of a peer: a burst, and a rate from then on."""

    def __init__(self) -> None:
        self._nbytes, self._messages = float(_BURST_NBYTES), float(_BURST_MESSAGES)
        self._time = time.monotonic()

    def spend(self, nbytes: int) -> None:
        """Count bytes that arrived; 0 counts a complete message. Raises RefusedError for the first one too many."""
        now = time.monotonic()
        passed, self._time = now - self._time, now
        self._nbytes = min(self._nbytes + passed * _RATE_NBYTES, _BURST_NBYTES) - nbytes
        self._messages = min(self._messages + passed * _RATE_MESSAGES, _BURST_MESSAGES) - (nbytes == 0)
        if self._nbytes < 0 or self._messages < 0:
            raise RefusedError(f"a peer sends more than {_RATE_NBYTES} bytes or {_RATE_MESSAGES} messages a second")
