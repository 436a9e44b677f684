"""Products on a device with a weight that is decoded slab by slab: torch multiplies a slab while the cache holds it.

A slab is some rows, in whole blocks. All slabs of a product are decoded into the same memory, one after the other on
one stream. So a product needs memory for one of them, and the host waits for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from .side_stream import LEAST_INPUTS
from .ways import part_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..frames.open_frame import AnyFrame

_LEAST_NBYTES, _MOST_NBYTES = 16 << 20, 24 << 20
"""Smaller slabs are too many launches, and larger ones leave the cache before they are multiplied."""
_ALIGNMENT = 128
"""Rows of a tile, in kernels of torch's libraries: a slab has whole tiles."""
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def slab_rows(rows: int, columns: int, word_nbytes: int, block_words: int, cache_nbytes: int) -> int:
    """How many rows of a weight are a slab, on a device with such a cache. All slabs are about alike. 0 if the weight
    is no larger than one, or if so few rows are no whole blocks."""
    row_nbytes = columns * word_nbytes
    slab_nbytes = min(max(_LEAST_NBYTES, cache_nbytes * 2 // 5), _MOST_NBYTES)  # inputs and results need room, too
    if rows * row_nbytes <= slab_nbytes:
        return 0
    step = math.lcm(_ALIGNMENT, block_words // math.gcd(block_words, columns))
    most = slab_nbytes // row_nbytes // step * step
    if most == 0:
        return 0
    count = -(-rows // most)
    return -(-rows // (count * step)) * step


def takes_slabs(x: Tensor, frame: AnyFrame, bias: Tensor | None) -> bool:
    """Whether `x`, (..., columns), has so few inputs that memory bounds their product; and whether torch can write it
    to a part of a result."""
    rows, columns = frame.shape
    return (
        x.dtype == frame.dtype
        and x.dtype in _DTYPES
        and x.shape[-1:] == (columns,)
        and 0 < x.numel() < LEAST_INPUTS * columns
        and (bias is None or (bias.dtype == x.dtype and bias.shape == (rows,)))
    )


def multiply_decoded(x: Tensor, frame: AnyFrame, slab: int, bias: Tensor | None) -> Tensor:
    """`x`, (..., columns), times the transpose of the weight, plus `bias`: (..., rows)."""
    rows, columns = frame.shape
    memory = torch.empty((slab, columns), dtype=frame.dtype, device=x.device)

    def decoded(start: int, stop: int) -> Tensor:
        weight = memory[: stop - start]
        frame.decode(start * columns, weight)
        return weight

    return multiply_by_slabs(x, rows, slab, bias, decoded)


def multiply_by_slabs(
    x: Tensor, rows: int, slab: int, bias: Tensor | None, weights: Callable[[int, int], Tensor]
) -> Tensor:
    """torch's product, of a weight that comes slab by slab.

    Args:
        weights: some rows of the weight, by the first of them and the one behind the last. They are used before the
            next ones are asked for.
    """
    inputs = x.reshape(-1, x.shape[-1])
    output = x.new_empty((len(inputs), rows))
    with torch.no_grad():  # a result that is given has no derivative
        for start in range(0, rows, slab):
            part = slice(start, min(rows, start + slab))
            multiply_into(output[:, part], inputs, weights(part.start, part.stop), part_of(bias, part))
    return output.view(*x.shape[:-1], rows)


def multiply_into(output: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """``torch.nn.functional.linear``, written to a part of a result: torch has that as two operations."""
    if bias is None:
        torch.mm(inputs, weight.t(), out=output)
    else:
        torch.addmm(bias, inputs, weight.t(), out=output)
