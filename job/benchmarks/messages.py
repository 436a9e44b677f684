"""What the probe costs a message between two ranks: send and recv always pass a kernel of its own.

CPU time of the two threads that send and receive a message of one number, in two jobs that take turns, one with the
probe. gloo's own thread is left out: what it takes depends on how often the cores fall asleep, and they do so
more often the longer anything else takes.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

from benchmarks.timing import interleave, spread

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

MODES = ("off", "passive")
ROUNDS = 30
MESSAGES = 500


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Microseconds of CPU time of a message, and what the probe adds to either rank."""
    jobs = {mode: _Job(mode, folder / mode) for mode in MODES}
    try:
        warm_up = {mode: job.run() for mode, job in jobs.items()}
        times = interleave({mode: job.run for mode, job in jobs.items()}, warm_up, rounds, float("inf"))
    finally:
        for job in jobs.values():
            job.stop()
    seconds = {mode: [value or 0.0 for value in values] for mode, values in times.items()}
    added = statistics.median(b - a for a, b in zip(*seconds.values(), strict=True)) / 2
    return {
        "microseconds": {mode: spread([value * 1e6 for value in values]) for mode, values in seconds.items()},
        "added_microseconds": added * 1e6,
    }


class _Job:
    """Two ranks that send to each other in turn when asked."""

    def __init__(self, mode: str, directory: Path) -> None:
        directory.mkdir(parents=True)
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(2)]
        self._connections = [ours for ours, _ in pipes]
        self._ranks = [
            context.Process(target=_work, args=(mode, str(directory), rank, theirs))
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._ranks:
            process.start()

    def run(self) -> float:
        """CPU seconds of a message, of both threads together."""
        for connection in self._connections:
            connection.send(True)
        return sum(connection.recv() for connection in self._connections)

    def stop(self) -> None:
        for connection in self._connections:
            connection.send(False)
        for process in self._ranks:
            process.join()


def _work(mode: str, directory: str, rank: int, connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    from tensorwire_job import attach

    os.environ.update(TENSORWIRE_PROBE_DIR=f"{directory}/pages", RANK=str(rank), WORLD_SIZE="2")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    if mode == "passive":
        attach()
        time.sleep(1.0)
    number = torch.zeros(1)
    while connection.recv():
        dist.barrier()
        start = time.thread_time()
        for sender in (0, 1) * (MESSAGES // 2):  # in turn: a sender that runs ahead costs gloo more and more
            if rank == sender:
                dist.send(number, 1 - rank)
            else:
                dist.recv(number, 1 - rank)
        connection.send((time.thread_time() - start) / MESSAGES)
    dist.destroy_process_group()
