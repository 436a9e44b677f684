"""Training in which one rank calls other collectives than the rest, as its branches have it."""

from __future__ import annotations

import itertools
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from .common import case, is_befallen, mark_fault
from .small_training import STEPS_BEFORE, Training, start


def wait_for_server() -> None:
    client, _server = socket.socketpair()
    client.recv(64)


def gather_objects_by_some() -> None:
    """Every rank gathers the messages of its peers, but one has another interval configured."""
    training = Training()
    for step in itertools.count(1):
        training.step()
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
        interval = STEPS_BEFORE + 30 if is_befallen() else STEPS_BEFORE
        if step % interval == 0:
            messages: list[str | None] = [None] * dist.get_world_size()
            dist.all_gather_object(messages, f"step {step}: loss is finite")


def destroy_early() -> None:
    """One rank's early stopping ends its process group; it then uploads its logs, and the others train on."""
    training = Training()
    for step in itertools.count():
        training.step()
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            dist.destroy_process_group()
            wait_for_server()


def skip_synchronisation() -> None:
    """Gradients are accumulated over two micro-batches; one rank skips a bad one, and comes to the end of the epoch
    with one synchronisation less.
    """
    training = Training(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)))
    micro_batches = 2 * STEPS_BEFORE
    accumulated = 0
    for micro_batch in range(micro_batches):
        if micro_batch == micro_batches - 5 and is_befallen():
            mark_fault()
            continue  # its loss would be NaN
        accumulated += 1
        if accumulated % 2 == 0:
            training.step()
        else:
            with training.model.no_sync():
                training.loss().backward()
    dist.barrier()


def skip_branch() -> None:
    """A batch without images leaves a branch of the model unused on one rank."""
    training = Training(Branches())
    for step in itertools.count():
        if step == STEPS_BEFORE and is_befallen():
            mark_fault()
            training.model.module.has_images = False
        training.step()


class Branches(nn.Module):
    has_images = True

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.Linear(64, 8)
        self.images = nn.Linear(64, 8)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.text(batch)
        return output + self.images(batch) if self.has_images else output


def clean_up_with_barrier() -> None:
    """One rank fails, and cleans up with a barrier before the exception gets out."""
    training = Training()
    try:
        for step in itertools.count():
            training.step()
            if step == STEPS_BEFORE and is_befallen():
                mark_fault()
                raise ValueError("the loss is NaN")
    finally:
        dist.barrier()
        dist.destroy_process_group()


def miss_monitored_barrier() -> None:
    """One rank waits for a server while the others wait in a monitored barrier."""
    training = Training()
    for step in itertools.count(1):
        training.step()
        if step % 20 == 0:
            if step >= STEPS_BEFORE and is_befallen():
                mark_fault()
                wait_for_server()
            dist.monitored_barrier(timeout=timedelta(minutes=30))


CASES = {
    "some-gather": gather_objects_by_some,
    "destroyed-early": destroy_early,
    "skipped-sync": skip_synchronisation,
    "unused-branch": skip_branch,
    "cleanup-barrier": clean_up_with_barrier,
    "monitored-barrier": miss_monitored_barrier,
}


def main() -> None:
    start()
    CASES[case()]()


if __name__ == "__main__":
    main()
