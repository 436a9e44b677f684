"""Jobs of one rank or two on gloo that do something whenever they are asked, and what it costs."""

from __future__ import annotations

import multiprocessing
import os
import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.timing import interleave, spread

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

    Work = Callable[[str, Path, int, Connection], None]

STOP = "stop"


class AskedJob:
    """Processes that each call `work` with a mode, a directory of the job, their rank, and a connection.

    They answer what they are sent on the connection with a number, until that is STOP.
    """

    def __init__(self, work: Work, mode: str, directory: Path, num_ranks: int = 1) -> None:
        directory.mkdir(parents=True)
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(num_ranks)]
        self._connections = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(target=work, args=(mode, directory, rank, theirs)) for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def ask(self, what: str) -> float:
        """The sum of what the ranks answer."""
        for connection in self._connections:
            connection.send(what)
        return sum(connection.recv() for connection in self._connections)

    def stop(self) -> None:
        for connection in self._connections:
            connection.send(STOP)
        for process in self._processes:
            process.join()


def join(directory: Path, rank: int, num_ranks: int) -> None:
    """Make this process a rank."""
    import torch
    import torch.distributed as dist

    os.environ.update(TENSORWIRE_PROBE_DIR=str(directory / "pages"), RANK=str(rank), WORLD_SIZE=str(num_ranks))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=num_ranks)


def costs(jobs: dict[str, AskedJob], what: str, rounds: int) -> dict[str, Any]:
    """CPU microseconds of an operation in each job, and what they add to those of the first, round by round."""
    operations: dict[str, Callable[[], float]] = {mode: partial(job.ask, what) for mode, job in jobs.items()}
    warm_up = {mode: run() for mode, run in operations.items()}
    times = interleave(operations, warm_up, rounds, float("inf"))
    found = {mode: [1e6 * (value or 0.0) for value in values] for mode, values in times.items()}
    off, *others = found
    return {
        "rounds": rounds,
        "microseconds": {mode: spread(values) for mode, values in found.items()},
        "added_microseconds": {
            mode: statistics.median(b - a for a, b in zip(found[off], found[mode], strict=True)) for mode in others
        },
    }
