"""torch's worker server: threads without the GIL in a rank, which answer over a unix socket beside the page.

Paths of sockets are limited to 107 bytes, so they are named through /proc/self/fd and the directory's descriptor.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import socket
import time
from pathlib import Path

from .deadline import DeadlineSocket

_MAX_ANSWER = 64 << 20


def start(page: Path) -> None:
    """Let this process answer until it ends. Nothing stops the server: that can block, and only prints.

    Raises:
        OSError, RuntimeError, ImportError: it cannot listen, or this torch has none.
    """
    from torch._C._distributed_c10d import _WorkerServer

    directory = os.open(page.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        server = _WorkerServer(f"/proc/self/fd/{directory}/{socket_path(page).name}")
    finally:
        os.close(directory)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def socket_path(page: Path) -> Path:
    """Where the rank of a page listens."""
    return page.with_suffix(".sock")


def flight_recorder(page: Path, *, timeout: float = 5.0) -> bytes:
    """The Flight Recorder of the rank as JSON, also while Python holds the GIL there.

    Raises:
        OSError: no server answers in `timeout` seconds.
        ValueError: the answer is none.
    """
    return _post(page, "fr_trace_json", timeout)


def dump_traceback(page: Path, *, timeout: float = 5.0) -> str:
    """The stacks of all Python threads of the rank; raises as :func:`flight_recorder`."""
    return _post(page, "dump_traceback", timeout).decode("utf-8", "replace")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path
        self._seconds = timeout

    def connect(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.sock = connected = DeadlineSocket(socket.AF_UNIX)
        try:
            connected.deadline = time.monotonic() + self._seconds
            connected.settimeout(self._seconds)
            connected.connect(f"/proc/self/fd/{directory}/{self._path.name}")
        finally:
            os.close(directory)


def _post(page: Path, handler: str, timeout: float) -> bytes:
    connection = _UnixConnection(socket_path(page), timeout)
    try:
        connection.request("POST", f"/handler/{handler}")
        answer = connection.getresponse()
        body = answer.read(_MAX_ANSWER)
    except http.client.HTTPException as error:
        raise ValueError(f"expected an answer of HTTP from {socket_path(page)}, got {error!r}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise ValueError(f"expected status 200 of {handler}, got {answer.status}: {body[:200]!r}")
    return body
