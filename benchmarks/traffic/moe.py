"""A small language model with a mixture of experts: each rank has one expert, and tokens travel to two of them.

Tokens travel as BF16 there and back, and so do their gradients. All else is on every rank, and its gradients are added
up in FP32.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from benchmarks import gpt
from benchmarks.traffic.counted import counted
from tensorwire.torch import traffic
from tensorwire.torch.traffic.codecs.codec import Raw

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from tensorwire.torch.traffic.choice import Choice

    Run = Callable[[Tensor, list[int]], Tensor]
    Way = Callable[[Run, Tensor, list[int]], Tensor]

WIDTH, LAYERS, HEADS = 128, 2, 4  # a row is a group of Grid(4, 128): no token shares a scale with another one
ROWS = 2  # of each rank and step
PEAK = 1e-3
_CHOICES = 2  # experts of a token


@dataclass(frozen=True)
class Result:
    """The loss of the saved model in nats, run without a codec; the bytes of tokens and gradients of all ranks, and a
    hash of all their parameters."""

    loss: float
    raw_nbytes: int
    sent_nbytes: int
    digest: str


class Experts(nn.Module):
    """One of them is on this rank. `way` may let others travel than the tokens."""

    def __init__(self, codec: Choice, way: Way | None) -> None:
        super().__init__()
        self.codec, self.way = codec, way
        self.gate = nn.Linear(WIDTH, dist.get_world_size(), bias=False)
        self.expert = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, state: Tensor) -> Tensor:
        tokens = state.flatten(0, 1)
        weights, chosen = self.gate(tokens).softmax(1).topk(_CHOICES)
        weights = weights / weights.sum(1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        splits = chosen.flatten().bincount(minlength=dist.get_world_size()).tolist()
        sent = tokens.bfloat16()[order // _CHOICES]
        back = self.way(self._run, sent, splits) if self.way else self._run(sent, splits)
        weighted = back.float() * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // _CHOICES, weighted).view_as(state)

    def _run(self, tokens: Tensor, splits: list[int]) -> Tensor:
        """What the experts make of tokens that are sorted by their expert."""
        come, counts = traffic.all_to_all(tokens, splits, codec=self.codec, name="to experts")
        made = self.expert(come.float()).bfloat16()
        return traffic.all_to_all(made, counts, codec=self.codec, name="from experts")[0]


class Layer(nn.Module):
    def __init__(self, codec: Choice, way: Way | None) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.mixed, self.output = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.experts = Experts(codec, way)

    def forward(self, state: Tensor) -> Tensor:
        parts = self.mixed(self.first(state)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
        state = state + self.output(attended.transpose(1, 2).flatten(2))
        return state + self.experts(self.second(state))


class Model(nn.Module):
    def __init__(self, seed: int, codec: Choice, way: Way | None = None) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.places = nn.Embedding(gpt.BYTES, WIDTH), nn.Embedding(gpt.CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer(codec, way) for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, gpt.BYTES, bias=False)
        for table in (self.words, self.places, self.head):
            nn.init.normal_(table.weight, std=0.02)
        torch.manual_seed(1000 * seed + dist.get_rank() + 1)
        for layer in self.layers:  # experts are unlike
            for linear in layer.experts.expert[::2]:
                linear.reset_parameters()

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the byte after each one."""
        state = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            state = layer(state)
        return self.head(self.norm(state))

    def loss(self, tokens: Tensor) -> Tensor:
        return functional.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(codec: Choice, steps: int, seed: int, way: Way | None = None) -> Result:
    """On all ranks at once."""
    model, before = Model(seed, codec, way), _counted()
    optimizer = gpt.optimizer_of(model.parameters())
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = gpt.rate_at(step, PEAK)
        optimizer.zero_grad()
        (model.loss(gpt.batch(step, ROWS, seed, dist.get_rank())) / dist.get_world_size()).backward()
        for name, parameter in model.named_parameters():
            if "expert." not in name:
                dist.all_reduce(parameter.grad)
        optimizer.step()
    totals = torch.tensor([after - start for after, start in zip(_counted(), before, strict=True)])
    dist.all_reduce(totals)
    for layer in model.layers:
        layer.experts.codec, layer.experts.way = Raw(), None
    return Result(_validated(model), int(totals[0]), int(totals[1]), _digest(model))


@torch.no_grad()
def _validated(model: Model) -> float:
    """Each rank has its part of the rows, a few of them at once."""
    rows = gpt.validation_batch()[dist.get_rank() :: dist.get_world_size()].split(32)
    loss = sum(model.loss(each) for each in rows) / len(rows)
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    return float(loss)


def _counted() -> tuple[int, int]:
    """Bytes of tokens and gradients."""
    dist.barrier()
    return counted(dist.group.WORLD, lambda row: row.tensor.endswith("experts"))


def _digest(model: nn.Module) -> str:
    own = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).digest()
    everyones = [own] * dist.get_world_size()
    dist.all_gather_object(everyones, own)
    return hashlib.sha256(b"".join(everyones)).hexdigest()
