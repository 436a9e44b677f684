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

if TYPE_CHECKING:
    from torch import Tensor

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


def linear_by_slabs(
    x: Tensor, rows: int, slab: int, bias: Tensor | None, threads: int, weights: Callable[[int, int, int], Tensor]
) -> Tensor:
    """torch's product, of a weight that comes slab by slab: each thread makes its slabs and multiplies with them.

    Args:
        weights: some rows of the weight, by the number of the thread, the first of them, and the one behind the last.
    """
    output = x.new_empty((*x.shape[:-1], rows))
    starts, workers = iter(range(0, rows, slab)), itertools.count()

    def work() -> None:
        worker = next(workers)
        with torch.inference_mode():  # the output may be of it
            for start in starts:
                part = slice(start, min(rows, start + slab))
                output[..., part] = linear(x, weights(worker, part.start, part.stop), part_of(bias, part))

    on_team(work, threads)
    return output


def part_of(bias: Tensor | None, part: slice) -> Tensor | None:
    return None if bias is None else bias[part]
