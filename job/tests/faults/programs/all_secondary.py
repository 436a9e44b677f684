"""Training whose ranks all fail because of a process that is no rank."""

from __future__ import annotations

import os
import signal

import torch.distributed as dist

from .small_training import Training, start_with_hosted_store


def main() -> None:
    """The process that hosts the store is killed, and then all make the next group, which asks the store."""
    host = start_with_hosted_store()

    def lose_store() -> None:
        os.kill(host, signal.SIGKILL)
        os.waitpid(host, 0)

    def make_group() -> None:
        dist.barrier()
        dist.new_group()

    Training().train(lose_store, make_group)


if __name__ == "__main__":
    main()
