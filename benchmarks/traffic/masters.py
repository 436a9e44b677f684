"""Training in one process as mixed precision does it: FP32 masters, and BF16 copies that compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks import gpt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

Weights = dict[str, "Tensor"]
ROWS = 4


class Training:
    """Two layers of width 256. `gradients` are those of the last step, before they are clipped."""

    def __init__(self, optimizer_of: Callable[[Iterable[Tensor]], torch.optim.Optimizer] = gpt.optimizer_of) -> None:
        self.model = gpt.GPT(layers=2, width=256)
        self._optimizer = optimizer_of(self.model.parameters())
        self.gradients: Weights = {}

    def step(self, number: int, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        copies = {name: each.bfloat16() for name, each in self.model.named_parameters()}
        torch.func.functional_call(self.model, copies, (gpt.batch(number, ROWS),)).backward()
        self.gradients = {name: each.grad.clone() for name, each in self.model.named_parameters()}  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()

    def copies(self) -> Weights:
        return {name: each.detach().bfloat16() for name, each in self.model.named_parameters()}


def layer_names(names: list[str] | Weights) -> list[list[str]]:
    """The parameters of each layer."""
    layers: dict[str, list[str]] = {}
    for name in names:
        if name.startswith("layers."):
            layers.setdefault(name.split(".")[1], []).append(name)
    return list(layers.values())


def outer_names(names: list[str] | Weights) -> list[str]:
    """What is in no layer: embedding, norm, head."""
    return [name for name in names if not name.startswith("layers.")]


def shards(weights: Weights, names: list[str], ranks: int) -> list[Tensor]:
    """What each rank has of a module under FSDP2: its part of the first dimension of each parameter."""
    parts = [weights[name].tensor_split(ranks) for name in names]
    return [torch.cat([part[rank].reshape(-1) for part in parts]) for rank in range(ranks)]
