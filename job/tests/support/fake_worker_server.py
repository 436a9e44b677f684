"""Answers as torch's worker server in a rank does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def worker_server(path: Path, answer: bytes, *, pause: float = 0.0) -> Iterator[list[bytes]]:
    """Gives all the same answer, with a pause after each byte if one is given. The list has what was asked."""
    asked: list[bytes] = []
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer
    parts = [whole[i : i + 1] for i in range(len(whole))] if pause else [whole]

    def serve() -> None:
        while True:
            with server.accept()[0] as connection, contextlib.suppress(OSError):  # the other end has had enough
                request = connection.recv(4096)
                if not request:
                    return
                asked.append(request)
                for part in parts:
                    connection.sendall(part)
                    time.sleep(pause)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join()
