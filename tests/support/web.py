"""An HTTP server on this machine that answers as told: it knows ranges, and each answer can be altered."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Answer:
    """What is sent; without `status` the connection is closed, and without `body` so at the end, after a silence."""

    status: int | None
    headers: dict[str, str]
    body: bytes | None


@dataclass(frozen=True)
class Request:
    """`start` is None for a request that names no range. `encodings` are those that an answer may have."""

    method: str
    path: str
    start: int | None
    encodings: str | None


@dataclass
class Web(ThreadingHTTPServer):
    """
    Attributes:
        pages: bodies by path.
        requests: what was asked.
        sent: bytes of bodies, in pieces of 64 KiB.
        alter: called with each request and the right answer to it, which it may change.
    """

    pages: dict[str, bytes]
    requests: list[Request] = field(default_factory=list)
    sent: int = 0
    alter: Callable[[Request, Answer], object] = lambda request, answer: None
    daemon_threads = True

    def __post_init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Web
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        request = Request(
            self.command, self.path.partition("?")[0], int(found[1]) if found else None, self.headers["Accept-Encoding"]
        )
        answer = self._right(request, found)
        self.server.requests.append(request)
        self.server.alter(request, answer)
        self.close_connection = answer.headers.get("Content-Length") != str(len(answer.body or b""))
        if answer.body is None:
            self.server.over.wait()
        if answer.status is None or answer.body is None:
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(OSError):
                for start in range(0, len(answer.body), 1 << 16):
                    self.wfile.write(answer.body[start : start + (1 << 16)])
                    self.server.sent += 1 << 16

    def _right(self, request: Request, found: re.Match[str] | None) -> Answer:
        body = self.server.pages.get(request.path)
        if body is None:
            return Answer(404, {"Content-Length": "0"}, b"")
        headers = {"ETag": '"one"', "Last-Modified": "Sun, 06 Nov 1994 08:49:37 GMT"}
        if request.path.endswith("/"):
            headers["Content-Type"] = "text/html"
        if found is None:
            return Answer(200, {**headers, "Content-Length": str(len(body))}, body)
        start, stop = int(found[1]), min(int(found[2]) + 1, len(body))
        headers |= {"Content-Length": str(stop - start), "Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}
        return Answer(206, headers, body[start:stop])

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@contextmanager
def serving(**pages: bytes) -> Iterator[Web]:
    """A server of these bodies; of a name of its page, `_` stands for a slash."""
    pytest.importorskip("aiohttp", reason="fsspec's HTTP needs aiohttp")
    with Web({"/" + name.replace("_", "/"): body for name, body in pages.items()}) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield web
        finally:
            web.over.set()
            web.shutdown()
            thread.join()
