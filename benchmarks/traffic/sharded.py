"""A small language model under FSDP2, in a rank, and what is attached to it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from benchmarks import gpt
from benchmarks.job import of_all
from benchmarks.traffic.counted import counted
from tensorwire.torch import traffic
from tensorwire.torch.traffic.codecs.codec import Raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn

RANKS_PER_NODE = 2
NODES = (
    traffic.Grid(8, 128, hadamard=32, rounding="stochastic"),
    traffic.Grid(4, 128, hadamard=32, rounding="stochastic"),
)
WEIGHTS = traffic.Grid(4, 2048, rounding="stochastic")
# What a contender attaches, by its name; None for FSDP2 without us.
CONTENDERS: dict[str, dict[str, Any] | None] = {
    "FSDP2": None,
    "raw messages": {"weights": Raw(), "gradients": Raw()},
    "exact differences": {},
    "exact differences and gradients": {"gradients": traffic.Exact()},
    "SDP4Bit": {"weights": WEIGHTS, "gradients": NODES, "ranks_per_node": RANKS_PER_NODE},
}


def sharded(
    model: nn.Module, layers: Iterable[nn.Module], *, gradients: torch.dtype = torch.bfloat16, reshard: bool = True
) -> nn.Module:
    """Each layer a module of FSDP2, and the rest one; BF16 weights, and gradients of this dtype, travel."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=gradients)
    for module in (*layers, model):
        fully_shard(module, mp_policy=policy, reshard_after_forward=reshard)
    return model


class Trained:
    """A model under FSDP2 with its optimizer.

    Attributes:
        number: of steps so far.
    """

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, int], Tensor]) -> None:
        self.model, self._loss = model, loss
        self._optimizer = gpt.optimizer_of(model.parameters())
        self.number = 0

    def step(self, rate: float) -> None:
        self.number += 1
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._loss(self.model, self.number).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def rows(self) -> list[Any]:
        """The rows of its counters; none if nothing is attached."""
        with suppress(ValueError):
            return traffic.counters(self.model)
        return []

    def sent_nbytes(self) -> int:
        return counted(self.model)[1]

    def masters(self) -> list[str]:
        """A hash of what each rank holds of the masters."""
        parts = [each.detach().to_local().reshape(-1) for each in self.model.parameters()]
        return of_all(hashlib.sha256(torch.cat(parts).numpy().tobytes()).hexdigest())


def trained_gpt(layers: int, width: int, rows: int, *, seed: int = 0, **options: Any) -> Trained:
    """Each rank has so many rows of its own in each step. `options` are those of `sharded`."""
    model = gpt.GPT(layers, width, seed)
    return Trained(
        sharded(model, model.layers, **options),
        lambda model, number: model(gpt.batch(number, rows, seed, dist.get_rank())),
    )
