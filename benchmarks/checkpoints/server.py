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
            options = {"endpoint_url": f"http://127.0.0.1:{port}", "key": "somebody", "secret": "a key"}
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
    """What s3fs asks meanwhile."""
    import s3fs

    asked, own = Asked(), s3fs.S3FileSystem._call_s3

    async def call(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        asked.requests.append(method)
        body = options.get("Body")
        if body is not None:
            asked.sent += len(body) if isinstance(body, (bytes, bytearray, memoryview)) else body.seek(0, 2)
            if not isinstance(body, (bytes, bytearray, memoryview)):
                body.seek(0)
        answer = await own(self, method, *arguments, **options)
        if method == "get_object":
            asked.received += answer["ContentLength"]
        return answer

    s3fs.S3FileSystem._call_s3 = call
    began = time.perf_counter()
    try:
        yield asked
    finally:
        asked.seconds = time.perf_counter() - began
        s3fs.S3FileSystem._call_s3 = own
