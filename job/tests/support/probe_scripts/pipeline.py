"""One of two ranks: each lets the other wait for a message in its turn, and reads in its page whom it waits for."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import read_page

directory = Path(os.environ["TENSORWIRE_PROBE_DIR"])
rank = int(os.environ["RANK"])
seen: list[Any] = []


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)


def waits(of: int) -> tuple[str, int, int] | None:
    """The message that a rank waits for: operation, peer, elements."""
    page = read_page(page_path(directory, of, 0))
    groups = page.process_groups(time.monotonic()) if page else []
    for group in groups:
        if group.is_pairwise and group.open_seconds is not None and group.operation is not None:
            assert group.open_seconds >= 0.9
            return group.operation.name, group.operation.root, group.operation.numel
    return None


class Late(torch.nn.Module):
    """The second stage, which begins with the first rows once the first stage is seen to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        if rank == 1 and self.num_calls == 2:  # first it is asked for the shapes
            wait_until(lambda: waits(0))
            seen.append(waits(0))
        return self.linear(x)


def main() -> None:
    dist.init_process_group("gloo")
    wait_until(lambda: read_page(page_path(directory, rank, 0)).slots)
    time.sleep(0.2)
    dist.barrier()
    tensor = torch.full((6,), float(rank))
    for begin in (
        lambda: [dist.irecv(tensor, 1)],
        lambda: dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, 1)]),
        lambda: [dist.recv(tensor, 1)],
    ):
        if rank == 0:
            for work in begin():
                if isinstance(work, dist.Work):
                    work.wait()
            assert tensor.tolist() == [1.0] * 6
            tensor.zero_()
            wait_until(lambda: waits(0) is None)
        else:
            wait_until(lambda: waits(0))
            seen.append(waits(0))
            dist.send(tensor, 0)
        dist.barrier()
    stage = PipelineStage(Late(), rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=torch.nn.functional.mse_loss)
    if rank == 0:
        schedule.step(torch.ones(4, 4))
    else:
        schedule.step(target=torch.ones(4, 4))
    print(seen)
    dist.destroy_process_group()


main()
