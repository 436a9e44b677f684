"""A server that speaks S3, on this machine: moto's, a stand-in for Amazon's. And what is asked of it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "bucket"
SECRET = "a-secret-key-of-a-user"
_SECONDS = 60.0


@contextmanager
def running() -> Iterator[dict[str, Any]]:
    """The options of fsspec that lead to it; it has an empty bucket."""
    import s3fs

    port = free_port()
    line = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait(port)
            options = {"endpoint_url": f"http://127.0.0.1:{port}", "key": "somebody", "secret": SECRET}
            s3fs.S3FileSystem(**options).mkdir(BUCKET)
            yield options
        finally:
            server.terminate()


def _wait(port: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise RuntimeError("the server did not start")
        time.sleep(0.1)


@dataclass
class Asked:
    """Requests of this process, and the bytes of objects in them."""

    requests: list[str] = field(default_factory=list)
    received: int = 0
    sent: int = 0
    seconds: float = 0.0


@contextmanager
def counted() -> Iterator[Asked]:
    """What clients of this process ask meanwhile, whoever uses them."""
    from aiobotocore.client import AioBaseClient

    asked, own = Asked(), AioBaseClient._make_api_call

    async def call(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        asked.requests.append(operation)
        asked.sent += _nbytes(parameters.get("Body", b""))
        answer = await own(self, operation, parameters)
        if operation == "GetObject":
            asked.received += answer["ContentLength"]
        return answer

    AioBaseClient._make_api_call = call
    began = time.perf_counter()
    try:
        yield asked
    finally:
        asked.seconds = time.perf_counter() - began
        AioBaseClient._make_api_call = own


def _nbytes(body: Any) -> int:
    """The bytes of a buffer, or those that are left of a file."""
    if not hasattr(body, "seek"):
        return len(body)
    here = body.tell()
    found: int = body.seek(0, 2) - here
    body.seek(here)
    return found
