"""Bits for each tensor within a budget of error: L-GreCo (arXiv 2210.17357)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from .arguments import expect_integer
from .codecs.grid import Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_BUCKETS = 10_000
_IMPOSSIBLE = np.int64(1 << 61)  # more bytes than there are, with room for a sum


class Budget:
    """A choice of codec for `attach_ddp`: as few bytes as the error of `default` allows.

    Every `every` steps rank 0 quantizes its gradients with each number of bits. A dynamic programme then picks the
    bits of each tensor, so that the sum of squared errors is at most that of `default`, and the bytes are fewest.
    Squares add up over tensors, norms do not: a budget of norms lets the whole error grow.

    Args:
        default: what all tensors have before the first decision, and whose error is the budget.
        bits: what a tensor may have.
        every: steps between decisions.
    """

    def __init__(self, default: Grid | None = None, bits: Sequence[int] = range(2, 9), every: int = 100) -> None:
        if default is not None and not isinstance(default, Grid):
            raise TypeError(f"expected a Grid, whose error is the budget, got {default!r}")
        expect_integer("every", every)
        self.default = default or Grid(4, 128)
        self.bits = tuple(sorted({*bits, self.default.bits}))
        self.every = every
        self.codecs = [replace(self.default, bits=each) for each in self.bits]
        if every < 1:
            raise ValueError(f"expected at least one step between decisions, got {every}")
        self._chosen: dict[str, int] = {}
        self._found: dict[str, tuple[list[float], list[int]]] = {}

    def __repr__(self) -> str:
        return f"Budget({self.default}, bits={self.bits}, every={self.every})"

    def __call__(self, name: str, step: int) -> Grid:
        return self.codecs[self._chosen.get(name, self.bits.index(self.default.bits))]

    def due(self, step: int) -> bool:
        """Whether gradients of this step are looked at."""
        return step % self.every == self.every - 1

    def observe(self, name: str, gradient: Tensor) -> None:
        """Squared errors and bytes of one tensor, for each number of bits."""
        flat = gradient.reshape(-1).float()
        errors, sizes = [], []
        for codec in self.codecs:
            restored = torch.empty_like(flat)
            codec.decode(codec.encode(flat), restored)
            errors.append(float((restored - flat).double().square().sum()))
            sizes.append(codec.nbytes(flat.numel()))
        self._found[name] = (errors, sizes)

    def decide(self) -> dict[str, int]:
        """The place in `bits` of each tensor that was observed, which is forgotten then."""
        names = list(self._found)
        errors = np.array([self._found[name][0] for name in names])
        sizes = np.array([self._found[name][1] for name in names])
        self._found.clear()
        if not names or not np.isfinite(errors).all():
            return {}
        return dict(zip(names, fewest_bytes(errors, sizes, self.bits.index(self.default.bits)), strict=True))

    def take(self, chosen: dict[str, int]) -> None:
        """What rank 0 has decided."""
        self._chosen.update(chosen)


def fewest_bytes(errors: np.ndarray, sizes: np.ndarray, default: int) -> list[int]:
    """The candidate of each tensor with the fewest bytes of all, whose errors add up to those of `default` at most.

    Errors are rounded up to 1/10,000 of the budget, so the budget is kept. By that the default itself may seem too
    dear; it is the answer then, or where nothing takes fewer bytes.

    Args:
        errors: of each tensor (rows) and candidate (columns), not negative.
        sizes: bytes, in the same order.
        default: the column whose sum of errors is the budget.
    """
    tensors, _ = errors.shape
    budget = errors[:, default].sum()
    if budget <= 0:
        return [default] * tensors
    costs = np.ceil(errors / budget * _BUCKETS).astype(np.int64)
    # Bytes of the tensors before the i-th, by how many buckets they may spend at most.
    least = np.full((tensors + 1, _BUCKETS + 1), _IMPOSSIBLE)
    least[0] = 0
    room = np.empty(_BUCKETS + 1, np.int64)
    for i in range(tensors):
        for cost, nbytes in zip(costs[i], sizes[i], strict=True):
            if cost <= _BUCKETS:
                with_it = np.add(least[i, : _BUCKETS + 1 - cost], nbytes, out=room[cost:])
                np.minimum(least[i + 1, cost:], with_it, out=least[i + 1, cost:])
    if least[tensors, _BUCKETS] >= sizes[:, default].sum():
        return [default] * tensors
    chosen, left = [default] * tensors, _BUCKETS
    for i in reversed(range(tensors)):
        chosen[i] = next(
            c for c, cost in enumerate(costs[i])
            if cost <= left and least[i, left - cost] + sizes[i, c] == least[i + 1, left]
        )  # fmt: skip
        left -= costs[i, chosen[i]]
    return chosen
