"""A small language model under FSDP2, in a rank, and what is attached to it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from benchmarks.traffic import gpt
from tensorwire.torch import traffic
from tensorwire.torch.traffic.codecs.codec import Raw

if TYPE_CHECKING:
    from torch import nn

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


def sharded(model: nn.Module, layers: list[nn.Module], *, gradients: torch.dtype = torch.bfloat16) -> nn.Module:
    """Each layer a module of FSDP2, and the rest one; BF16 weights, and gradients of this dtype, travel."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=gradients)
    for layer in layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=True)
    return fully_shard(model, mp_policy=policy, reshard_after_forward=True)


class Sharded:
    """GPT with its optimizer. Each rank has `rows` rows of its own in each step."""

    def __init__(self, layers: int, width: int, rows: int, *, gradients: torch.dtype = torch.bfloat16, seed: int = 0):
        model = gpt.GPT(layers, width, seed)
        self.model = sharded(model, list(model.layers), gradients=gradients)
        self.optimizer = gpt.optimizer_of(self.model.parameters(), 0.0)
        self._rows, self._seed = rows, seed
        self.number = 0

    def step(self, rate: float) -> float:
        """The loss of this rank."""
        self.number += 1
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.model(gpt.batch(self.number, self._rows, self._seed, dist.get_rank()))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def rows(self) -> list[Any]:
        """The rows of its counters; none if nothing is attached."""
        with suppress(ValueError):
            return traffic.counters(self.model)
        return []

    def sent_nbytes(self) -> int:
        return sum(row.sent_nbytes for row in self.rows())
