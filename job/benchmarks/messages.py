"""What the probe costs a message between two ranks: send and recv always pass a kernel of its own.

CPU time of the two threads that send and receive a message of one number, in two jobs that take turns, one with the
probe. gloo's own thread is left out: what it takes depends on how often the cores fall asleep, and they do so
more often the longer anything else takes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from job.benchmarks.asked_job import STOP, AskedJob, costs, join

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

MODES = ("off", "passive")
ROUNDS = 30
MESSAGES = 500


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Microseconds of CPU time of a message, and what the probe adds to either rank."""
    jobs = {mode: AskedJob(_work, mode, folder / mode, 2) for mode in MODES}
    try:
        found = costs(jobs, "message", rounds)
    finally:
        for job in jobs.values():
            job.stop()
    return found | {"added_microseconds": found["added_microseconds"]["passive"] / 2}


def _work(mode: str, directory: Path, rank: int, connection: Connection) -> None:
    """Answers with the CPU seconds of a message, of this rank's thread."""
    import torch
    import torch.distributed as dist

    from tensorwire_job import attach

    join(directory, rank, 2)
    if mode == "passive":
        attach()
        time.sleep(1.0)
    number = torch.zeros(1)
    while connection.recv() != STOP:
        dist.barrier()
        start = time.thread_time()
        for sender in (0, 1) * (MESSAGES // 2):  # in turn: a sender that runs ahead costs gloo more and more
            if rank == sender:
                dist.send(number, 1 - rank)
            else:
                dist.recv(number, 1 - rank)
        connection.send((time.thread_time() - start) / MESSAGES)
    dist.destroy_process_group()
