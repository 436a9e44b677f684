"""A trainer and an engine: one sends a version over TCP, the other one applies it."""

from __future__ import annotations

import os
import socket
import threading
import time
from queue import SimpleQueue
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist

from benchmarks import job
from benchmarks.sync import codecs
from benchmarks.sync.model import Model, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.tables import Row

_SIZE_NBYTES = 8


def rank(settings: Any) -> list[Row]:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    model = Model(settings["words"], settings["tensors"])
    with _connected() as connection:
        return [row for megabits in settings["megabits"] for row in _rows(connection, model, settings, megabits)]


def _rows(connection: socket.socket, model: Model, settings: Any, megabits: float) -> Iterator[Row]:
    job.set_rate(megabits)
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(1, settings["turns"] + 1):
        turn = model.turn(number)
        for name, codec in codecs.CODECS.items():
            for how in ("serial", "pipelined"):
                took = _timed(connection, codec, turn, is_pipelined=how == "pipelined")
                found.setdefault((name, how), []).append(took)
    for name in codecs.CODECS:
        yield {
            "link": megabits / 1000, "with": name,
            **{how: median(found[name, how]) for how in ("serial", "pipelined")},
        }  # fmt: skip


def _timed(connection: socket.socket, codec: codecs.Codec, turn: Turn, *, is_pipelined: bool) -> float:
    """In both: seconds until all is applied."""
    held = {name: each.copy() for name, each in turn.old.items()}
    hashes = codecs.hashes(turn.old)
    dist.barrier()
    began = time.perf_counter()
    if dist.get_rank() == 0:
        sent = (codec.encode(turn.old[name], new, hashes[name]) for name, new in turn.new.items())
        _send(connection, sent if is_pipelined else list(sent))
    else:
        come = _received(connection, len(held))
        for each, words in zip(come if is_pipelined else list(come), held.values(), strict=True):
            codec.apply(each, words)
    seconds = max(job.of_all(time.perf_counter() - began))
    if dist.get_rank() == 1 and any(not np.array_equal(held[name], each) for name, each in turn.new.items()):
        raise AssertionError("other words came out")
    return seconds


def _send(connection: socket.socket, parts: Iterable[Any]) -> None:
    """A thread sends while the next part is made."""
    waiting: SimpleQueue[Any] = SimpleQueue()

    def send() -> None:
        while (part := waiting.get()) is not None:
            connection.sendall(len(part).to_bytes(_SIZE_NBYTES, "little"))
            connection.sendall(part)

    sender = threading.Thread(target=send)
    sender.start()
    for part in parts:
        waiting.put(part)
    waiting.put(None)
    sender.join()


def _received(connection: socket.socket, count: int) -> Iterator[memoryview]:
    """A thread receives while a part is applied."""
    come: SimpleQueue[memoryview] = SimpleQueue()

    def receive() -> None:
        for _ in range(count):
            nbytes = int.from_bytes(_exactly(connection, _SIZE_NBYTES), "little")
            come.put(_exactly(connection, nbytes))

    threading.Thread(target=receive).start()
    for _ in range(count):
        yield come.get()


def _exactly(connection: socket.socket, nbytes: int) -> memoryview:
    data = memoryview(bytearray(nbytes))
    done = 0
    while done < nbytes:
        done += connection.recv_into(data[done:])
    return data


def _connected() -> socket.socket:
    """The two ends of one connection."""
    if dist.get_rank() == 0:
        with socket.create_server((os.environ["MASTER_ADDR"], 0)) as server:
            job.of_all(server.getsockname())
            return server.accept()[0]
    return socket.create_connection(tuple(job.of_all(None)[0]))
