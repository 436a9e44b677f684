"""References of the orders of summation (thin.cuh): an instruction of a tensor core is modelled as the shim does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from tensorwire.torch.device.plan import RUN

if TYPE_CHECKING:
    from tensorwire.torch.device.orders import DeviceOrder

Library = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]
_STEP = 16
# The place in a step of each of an instruction's numbers: lane t has numbers 2t, 2t + 1, 2t + 8 and 2t + 9, and columns
# 4t to 4t + 3.
_PLACES = [4 * (k % 8 // 2) + 2 * (k // 8) + k % 2 for k in range(_STEP)]


def _step(sums: np.ndarray, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Sums with the products of 16 columns, rounded once."""
    exact = sums.astype(np.float64)
    for place in _PLACES:
        exact += x[:, place, None] * weight[None, :, place]
    return exact.astype(np.float32)


def sums_of(order: DeviceOrder, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T``, (count, rows), float32."""
    inputs, rows = (each.to(torch.float64).numpy() for each in (x, weight))
    columns = weight.shape[1]
    width = order.part_runs(columns) * RUN
    total: np.ndarray | None = None
    with np.errstate(all="ignore"):
        for begin in range(0, columns, width):
            parts = [np.zeros((len(x), len(weight)), np.float32) for _ in range(1 + order.two)]
            for first in range(begin, min(columns, begin + width), _STEP):
                which = first // 32 % 2 if order.two else 0
                some = slice(first, first + _STEP)
                parts[which] = _step(parts[which], inputs[:, some], rows[:, some])
            part = parts[0] + parts[1] if order.two else parts[0]
            if order.rounded:
                part = torch.from_numpy(part).to(x.dtype).float().numpy()
            total = part if total is None else total + part
    assert total is not None
    return torch.from_numpy(total)


def product_of(
    order: DeviceOrder, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """The result that a product in this order has."""
    total = sums_of(order, x, weight)
    return (total if bias is None else total + bias.float()).to(dtype)


def library_in(order: DeviceOrder) -> Library:
    """A library that sums in this order."""

    def multiplied(x: torch.Tensor, dense: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        found = product_of(order, x.reshape(-1, x.shape[-1]), dense, bias, x.dtype)
        return found.view(*x.shape[:-1], len(dense))

    return multiplied


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether they are equal bit for bit, but for what NaNs hold."""
    if a.dtype != b.dtype or not torch.equal(a.isnan(), b.isnan()):
        return False
    words = torch.int16 if a.itemsize == 2 else torch.int32
    bits = [torch.where(each.isnan(), 0, each).view(words) for each in (a, b)]
    return torch.equal(*bits)
