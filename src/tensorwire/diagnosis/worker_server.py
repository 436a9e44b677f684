"""Questions to the server that torch runs in a rank (`torch._C._distributed_c10d._WorkerServer`): HTTP on a unix socket.

Its threads are native: it answers while Python holds the interpreter lock, but for what needs that lock itself.
"""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

_MAX_NBYTES: Final = 64 << 20
_RECEIVE_NBYTES = 1 << 18


def flight_recorder(path: Path, *, timeout: float) -> dict[str, Any]:
    """What the rank's Flight Recorder knows: the last operations and, by group, the counts.

    Args:
        path: of the socket.
        timeout: seconds for all of it.

    Raises:
        OSError: nobody answers there in time.
        ValueError: the answer is not one of this server.
    """
    answer = json.loads(_ask(path, "fr_trace_json", timeout))
    if type(answer) is not dict:
        raise ValueError("expected a JSON object from the Flight Recorder")
    return answer


def dump_traceback(path: Path, *, timeout: float) -> str:
    """The Python stacks of all threads. Waits for the interpreter lock. Arguments and errors as above."""
    return _ask(path, "dump_traceback", timeout).decode(errors="replace")


def _ask(path: Path, handler: str, timeout: float) -> bytes:
    deadline = time.monotonic() + timeout
    request = f"POST /handler/{handler} HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    answer = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(request.encode())
        while chunk := connection.recv(_RECEIVE_NBYTES):
            answer += chunk
            if len(answer) > _MAX_NBYTES:
                raise ValueError(f"a rank's server answers with more than {_MAX_NBYTES} bytes")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            connection.settimeout(left)
    head, found, body = bytes(answer).partition(b"\r\n\r\n")
    status = head.split(b"\r\n")[0].split()
    if not found or len(status) < 2 or not status[0].startswith(b"HTTP/1."):
        raise ValueError("expected an HTTP answer from a rank's server")
    if status[1] != b"200":
        raise ValueError(f"the rank's server says {body[:200].decode(errors='replace').strip()}")
    return body
