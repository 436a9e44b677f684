"""Functions that run on ranks of torch.distributed: processes on this machine, connected by gloo.

A server imports torch once and forks the ranks, so that a new set of them starts in a fraction of a second. The ranks
of a module of tests stay and take one function after another.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from .ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

PRELOAD = [
    "torch._dynamo",  # FSDP2 imports it when it is first used
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
    "torch.nn.parallel",
    "tensorwire.torch.traffic",
    "tests.support.sent_tensors",  # other processes of the same server need it
]
_START_SECONDS = 90  # torch's import on a loaded machine


class Ranks:
    """So many ranks of one job, each in a process of its own. They start when they are first needed, and anew after a
    failure, since the others may wait for the one that failed.

    Attributes:
        pids: of the processes, in the order of ranks.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._processes: list[Any] = []
        self._connections: list[Connection] = []

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def run(self, function: Callable[..., Any], *arguments: Any, seconds: float = 60) -> list[Any]:
        """What `function(*arguments)` returns on each rank. The function is one of a module, and so are its arguments.

        Raises:
            AssertionError: it raised on a rank, or took longer than `seconds`.
        """
        self.begin(function, *arguments)
        return self.results(seconds)

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Let all ranks run it, and return at once; `results` waits."""
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send((function, arguments))

    def results(self, seconds: float = 60) -> list[Any]:
        found = self._receive(seconds)
        failed = [f"rank {rank}:\n{text}" for rank, (fine, text) in sorted(found.items()) if not fine]
        missing = sorted(set(range(self.size)) - found.keys())
        if failed or missing:
            self.close(signal.SIGKILL if failed else signal.SIGABRT)
            raise AssertionError("\n".join(failed) or f"ranks {missing} gave no result in {seconds} s")
        return [found[rank][1] for rank in range(self.size)]

    def _receive(self, seconds: float) -> dict[int, tuple[bool, Any]]:
        """After the first failure the others have a second to fail, too."""
        deadline = time.monotonic() + seconds
        found: dict[int, tuple[bool, Any]] = {}
        open_ = {connection: rank for rank, connection in enumerate(self._connections)}
        while open_ and (left := deadline - time.monotonic()) > 0:
            for ready in wait(list(open_), left):
                rank = open_.pop(ready)  # type: ignore[call-overload]
                try:
                    found[rank] = ready.recv()  # type: ignore[union-attr]
                except EOFError:
                    found[rank] = (False, "the process has ended")
                if not found[rank][0]:
                    deadline = min(deadline, time.monotonic() + 1)
        return found

    def _start(self) -> None:
        port = free_port()
        for rank in range(self.size):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, rank, self.size, port), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)
        self.begin(os.getpid)
        self.results(_START_SECONDS)

    def end(self, seconds: float) -> list[int | None]:
        """Let the processes end by themselves. Returns their exit codes, None for one that runs still."""
        for connection in self._connections:
            connection.close()
        deadline = time.monotonic() + seconds
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process.exitcode for process in self._processes]

    def close(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the processes; by SIGABRT they print their stacks."""
        for process in self._processes:
            with suppress(ProcessLookupError):  # it may end meanwhile
                if process.is_alive():
                    os.kill(process.pid, how)
        for process in self._processes:
            process.join(10)
            process.kill()
            process.join()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []


def _serve(connection: Connection, rank: int, size: int, port: int) -> None:
    """What a function leaves goes at once: a group of gloo has threads, and where a peer has left it in the middle of a
    message, one of them never rests."""
    import torch
    import torch.distributed as dist

    faulthandler.enable(sys.stderr)
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", address, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    while True:
        gc.freeze()  # what is here stays, and is not looked at again
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, function(*arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        gc.collect()
        connection.send(answer)
