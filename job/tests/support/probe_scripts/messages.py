"""One of two ranks: sends messages that are not waited for, then lets the other wait for one in its turn, and reads in
the other's page which one."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from ..quick_times import OPEN_SECONDS
from .own_page import groups, rank, wait_until

seen: list[Any] = []


def since_last() -> float:
    """Seconds, as the page has it; far more where it knows of none."""
    return min((group.idle_seconds for group in groups() if group.idle_seconds is not None), default=1e9)


def waits(of: int) -> tuple[str, int, int] | None:
    """The message that a rank waits for: operation, peer, elements."""
    for group in groups(of):
        if group.is_pairwise and group.open_seconds is not None and group.operation is not None:
            assert group.open_seconds >= 0.9 * OPEN_SECONDS
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


def not_waited_for() -> None:
    """For a while there is nothing but these messages: when was the last one completed?"""
    begin = time.monotonic()
    for _ in range(30):
        dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.empty(1), 0)
        time.sleep(0.02)
    wait_until(lambda: time.monotonic() - since_last() > begin)
    wait_until(lambda: since_last() > 1.0)
    assert time.monotonic() - since_last() > begin


def waited_for() -> None:
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


dist.init_process_group("gloo")
wait_until(groups)
dist.barrier()
not_waited_for()
dist.barrier()
waited_for()
schedule = Schedule1F1B(
    PipelineStage(Late(), rank, 2, torch.device("cpu")), n_microbatches=2, loss_fn=torch.nn.functional.mse_loss
)
if rank == 0:
    schedule.step(torch.ones(4, 4))
else:
    schedule.step(target=torch.ones(4, 4))
print(seen)
dist.destroy_process_group()
