"""A small recommendation model whose tables lie on different ranks, on synthetic clicks.

A click depends on pairs of categories (a planted second-order signal), so the model has to learn vectors for rows that
are asked for with Zipf's frequencies. Each rank looks up its tables for all ranks: their categories follow from seed
and step, and need not travel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from benchmarks.traffic.counted import counted
from tensorwire.torch import traffic
from tensorwire.torch.traffic.codecs.codec import Raw

if TYPE_CHECKING:
    from torch import Tensor

    from tensorwire.torch.traffic.choice import Choice

TABLES = np.geomspace(30, 100_000, 8).astype(int)
DIM, HIDDEN, RATE = 16, 64, 0.02
ZIPF = 1.1
EXAMPLES = 512  # of each rank and step
VALIDATION_STEPS = 8
_LATENT = 4
_FIRST, _SECOND = np.triu_indices(len(TABLES), 1)


@dataclass(frozen=True)
class Result:
    """The area under the ROC curve of the saved model, the last loss, and the bytes of vectors of all ranks."""

    auc: float
    loss: float
    raw_nbytes: int
    sent_nbytes: int


class Clicks:
    """Categories of each example, one a table, and whether it was clicked."""

    def __init__(self) -> None:
        generator = np.random.default_rng(20)
        self._shares = [np.cumsum(np.arange(1, rows + 1) ** -ZIPF) for rows in TABLES]
        self._latent = [generator.normal(size=(rows, _LATENT)).astype(np.float32) for rows in TABLES]

    def batch(self, seed: int, step: int, rank: int) -> tuple[Tensor, Tensor]:
        generator = np.random.default_rng((seed, step, rank))
        draws = [generator.random(EXAMPLES) * share[-1] for share in self._shares]
        rows = [np.searchsorted(share, draw) for share, draw in zip(self._shares, draws, strict=True)]
        latent = np.stack([table[row] for table, row in zip(self._latent, rows, strict=True)], 1)
        signal = np.einsum("eid,ejd->eij", latent, latent)[:, _FIRST, _SECOND].sum(1) / 8 - 0.5
        clicked = generator.random(EXAMPLES) < 1 / (1 + np.exp(-signal))
        return torch.from_numpy(np.stack(rows)), torch.from_numpy(clicked.astype(np.float32))


class Model(nn.Module):
    """The tables of this rank, and all of the dense part."""

    def __init__(self, seed: int, codec: Choice) -> None:
        super().__init__()
        self.codec = codec
        torch.manual_seed(seed)
        tables = [nn.Embedding(rows, DIM, sparse=True) for rows in TABLES.tolist()]
        self.tables = nn.ModuleDict({str(i): each for i, each in enumerate(tables) if owner(i) == dist.get_rank()})
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=0.1)
        width = len(_FIRST) + len(TABLES) * DIM
        self.dense = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, rows: list[Tensor]) -> Tensor:
        """Logits of this rank's examples; `rows` are the categories of each rank."""
        vectors = torch.stack([self._vectors(i, rows) for i in range(len(TABLES))], 1)
        pairs = (vectors @ vectors.transpose(1, 2))[:, _FIRST, _SECOND]
        return self.dense(torch.cat([pairs, vectors.flatten(1)], 1)).squeeze(1)

    def _vectors(self, i: int, rows: list[Tensor]) -> Tensor:
        """The rank that has a table sends them. Gradients are not coded, as in the published system."""
        if owner(i) == dist.get_rank():
            found, splits = self.tables[str(i)](torch.cat([each[i] for each in rows])), [EXAMPLES] * len(rows)
        else:
            found, splits = torch.empty(0, DIM, requires_grad=torch.is_grad_enabled()), [0] * len(rows)
        return traffic.all_to_all(found, splits, codec=self.codec, backward=Raw(), name=f"table {i}")[0]


def owner(table: int) -> int:
    return int(table % dist.get_world_size())


def train(codec: Choice, steps: int, seed: int) -> Result:
    """On all ranks at once. `codec` is of the vectors; a function gets "table 0" to "table 7" and the step."""
    clicks, size = Clicks(), dist.get_world_size()
    model, before = Model(seed, codec), _counted()
    tables = torch.optim.SparseAdam(list(model.tables.parameters()), RATE)
    dense = torch.optim.Adam(model.dense.parameters(), RATE / 4)
    loss = torch.zeros(())
    for step in range(steps):
        batches = [clicks.batch(seed, step, rank) for rank in range(size)]
        logits = model([rows for rows, _ in batches])
        loss = functional.binary_cross_entropy_with_logits(logits, batches[dist.get_rank()][1]) / size
        for optimizer in (tables, dense):
            optimizer.zero_grad()
        loss.backward()
        for parameter in model.dense.parameters():
            dist.all_reduce(parameter.grad)
        for optimizer in (tables, dense):
            optimizer.step()
    totals = torch.tensor([*(after - start for after, start in zip(_counted(), before, strict=True)), loss.item()])
    dist.all_reduce(totals)
    model.codec = Raw()
    return Result(_validated(model, clicks), float(totals[2]), int(totals[0]), int(totals[1]))


def _counted() -> tuple[int, int]:
    """Bytes of vectors."""
    dist.barrier()
    return counted(dist.group.WORLD, lambda row: row.tensor.startswith("table") and "backward" not in row.direction)


def _validated(model: Model, clicks: Clicks) -> float:
    found: list[tuple[Tensor, Tensor]] = []
    for step in range(VALIDATION_STEPS):
        batches = [clicks.batch(1 << 20, step, rank) for rank in range(dist.get_world_size())]
        with torch.no_grad():
            own = (model([rows for rows, _ in batches]), batches[dist.get_rank()][1])
        everyones: list[tuple[Tensor, Tensor]] = [own] * len(batches)
        dist.all_gather_object(everyones, own)
        found += everyones
    logits, clicked = (torch.cat(each) for each in zip(*found, strict=True))
    return area(logits, clicked)


def area(logits: Tensor, clicked: Tensor) -> float:
    """Under the ROC curve: how often an example that was clicked has the larger one of two logits."""
    places = torch.empty(len(logits), dtype=torch.float64)
    places[logits.argsort()] = torch.arange(1, len(logits) + 1, dtype=torch.float64)
    ones = clicked.sum().double()
    return float((places[clicked > 0].sum() - ones * (ones + 1) / 2) / (ones * (len(logits) - ones)))
