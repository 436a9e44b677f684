"""A small model in DDP, trained step by step, and what the programs with faults share."""

from __future__ import annotations

import ctypes
import itertools
import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from .common import STEPS_BEFORE, befalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COMPUTE_SECONDS = 0.02
TIMEOUT = timedelta(minutes=30)  # longer than a run is watched
_PR_SET_PDEATHSIG = 1


def start(timeout: timedelta = TIMEOUT) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timeout)


def run(program: Callable[[], object]) -> None:
    """How a module's functions are called, unless it has a `run` of its own: once the rank has joined the others."""
    start()
    program()


def between_steps(fault: Callable[[], object]) -> None:
    """Training in which this befalls the rank between two steps, while the others go on to the next one."""
    start()
    Training().train(fault)


def steps(first: int = 0) -> Iterator[int]:
    """The number of each step, without end; each begins with a little compute."""
    for step in itertools.count(first):
        time.sleep(_COMPUTE_SECONDS)
        yield step


def mesh_groups(*names: str) -> list[dist.ProcessGroup]:
    """The groups of this rank in a 2 x 2 mesh, by the names of its dimensions."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    return [mesh[name].get_group() for name in names]


def after(distance: int = 1) -> int:
    """The next rank of a ring, or one that is further on."""
    return (dist.get_rank() + distance) % dist.get_world_size()


def before() -> int:
    return after(-1)


def pass_on(block: torch.Tensor, received: torch.Tensor, receiver: int | None = None) -> list[dist.Work]:
    """Begin to send a block to the next rank of a ring, or to another one, and to receive from the rank before."""
    receiver = after() if receiver is None else receiver
    ends = [dist.P2POp(dist.isend, block, receiver), dist.P2POp(dist.irecv, received, before())]
    return list(dist.batch_isend_irecv(ends))


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def sharded(model: nn.Module, *parts: nn.Module) -> nn.Module:
    """Shard a model with FSDP2 over all ranks, and these parts of it by themselves."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*parts, model):
        fully_shard(module, mesh=mesh)
    return model


class Training:
    """Steps of a perceptron in DDP: compute, asleep for the most part, and the reduction of the gradients.

    Args:
        model: in place of the perceptron.
        wrap: in place of DDP.
    """

    def __init__(
        self, model: nn.Module | None = None, wrap: Callable[[nn.Module], nn.Module] = DistributedDataParallel
    ) -> None:
        self.model: Any = wrap(model or perceptron())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def loss(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.randn(4, 64)).square().mean()
        return loss

    def step(self, compute_seconds: float = _COMPUTE_SECONDS) -> None:
        time.sleep(compute_seconds)
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def steps(self, first: int = 0) -> Iterator[int]:
        """Take steps without end; gives the number of each when it is done."""
        for step in itertools.count(first):
            self.step()
            yield step

    def train(self, fault: Callable[[], object] = lambda: None, then: Callable[[], object] = lambda: None) -> None:
        """Take steps for ever. After a while the fault befalls its rank, and then all ranks do something else once."""
        for step in self.steps():
            if befalls(step):
                fault()
            if step == STEPS_BEFORE:
                then()


def die_with_parent() -> None:
    """In a child: what ends the rank ends it too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
