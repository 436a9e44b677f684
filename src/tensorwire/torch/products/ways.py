"""How a product with dense rows is computed: in an order of ours, or by slabs in which torch multiplies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from ...codec.products import Order, linear_dense
from ..frames.team import on_team, team
from .kind import flushes_denormals

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_NORMAL = 2.0**-126

DTYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16"}
"""The dtypes that we have orders of summation for."""


def sums(x: Tensor, weight: Tensor, order: Order, threads: int) -> Tensor:
    """``x @ weight.t()`` with a dense weight: float32, (..., rows)."""
    (rows, columns), count = weight.shape, math.prod(x.shape[:-1])
    inputs = x.to(torch.float32).contiguous()
    outputs = torch.empty((*x.shape[:-1], rows), dtype=torch.float32, device="cpu")
    linear_dense(
        DTYPE_NAMES[weight.dtype], weight.data_ptr(), rows, columns, order, inputs.data_ptr(), count,
        outputs.data_ptr(), threads, team(),
    )  # fmt: skip
    return outputs


def rounded(output: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Sums in float32 as torch makes a result of them: it adds the bias before it rounds."""
    if bias is not None:
        output += bias
    return output.to(dtype)


def decided_with_bias(output: Tensor) -> Tensor:
    """Whether the order alone says which bits come out, for each sum to which `rounded` has added a bias: not if it is
    a NaN, which may be any, or denormal, which VDPBF16PS's companion rounds to zero."""
    size = output.abs()
    return (size >= _LEAST_NORMAL) | (size == 0)


def any_flushes_denormals(threads: int) -> bool:
    """Whether one of torch's threads does, of so many. `torch.set_flush_denormal` is for one alone, and those that
    torch starts later are like the thread that starts them."""
    found: list[bool] = []
    on_team(lambda: found.append(flushes_denormals()), threads)
    return any(found)


def linear_by_slabs(
    x: Tensor, rows: int, slab: int, bias: Tensor | None, threads: int, weights: Callable[[int, int, int], Tensor]
) -> Tensor | None:
    """torch's product, of a weight that comes slab by slab: each thread makes its slabs and multiplies with them. None
    where a thread flushes denormals: it has other rows than in torch's product with the whole weight.

    Args:
        weights: some rows of the weight, by the number of the thread, the first of them, and the one behind the last.
    """
    output = x.new_empty((*x.shape[:-1], rows))
    starts, workers = iter(range(0, rows, slab)), itertools.count()
    flushing: list[int] = []

    def work() -> None:
        worker = next(workers)
        if flushes_denormals():  # asked of every thread: one that comes too late for a slab has rows of torch's
            flushing.append(worker)
            return
        with torch.inference_mode():  # the output may be of it
            for start in starts:
                part = slice(start, min(rows, start + slab))
                output[..., part] = linear(x, weights(worker, part.start, part.stop), part_of(bias, part))

    on_team(work, threads)
    return None if flushing else output


def part_of(bias: Tensor | None, part: slice) -> Tensor | None:
    return None if bias is None else bias[part]
