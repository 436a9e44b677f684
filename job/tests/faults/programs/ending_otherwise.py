"""Training in which the process of one rank ends, is ended or is no use any more, in ways that leave few words."""

from __future__ import annotations

import os
import pickle
import queue
import resource
import signal
import sys
import threading
from typing import Any

import torch

from .common import chosen, folder, stay_away
from .small_training import Training, start


def end_with_uploader() -> None:
    """The script has come to its end, and a thread that uploads logs keeps the process alive."""
    threading.Thread(target=queue.Queue[str]().get).start()
    sys.exit(0)


def exceed_cpu_time() -> None:
    """The rank reaches the CPU time that its shell allows."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1, resource.RLIM_INFINITY))
    while True:
        torch.randn(64, 64) @ torch.randn(64, 64)


def overflow_stack() -> None:
    """A tree of the data set is deeper than the stack."""
    tree: list[Any] = []
    for _ in range(1_000_000):
        tree = [tree]
    sys.setrecursionlimit(1 << 30)
    pickle.dumps(tree)


def close_descriptors() -> None:
    """A helper that makes a daemon closes all descriptors that it did not open, those of connections too."""
    os.closerange(3, 4096)


def be_preempted() -> None:
    """The scheduler takes back the node of one rank, which saves and leaves as it was asked to."""

    def leave(*_: object) -> None:
        torch.save(torch.ones(64, 64), folder() / "preempted.pt")
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt() -> None:
    """Ctrl-C reaches one rank alone."""
    os.kill(os.getpid(), signal.SIGINT)


def hang_up() -> None:
    """The terminal of one rank is closed."""
    os.kill(os.getpid(), signal.SIGHUP)


def await_end() -> None:
    """The rank waits for a lock. The runner ends all ranks, one after another."""
    stay_away()


if __name__ == "__main__":
    start()
    Training().train(chosen(globals()))
