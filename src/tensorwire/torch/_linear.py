"""A product with a compressed weight on the CPU.

*exact* gives the bits of ``torch.nn.functional.linear`` with the dense weight. For few rows of input the weight is
decoded slab by slab, each of which torch multiplies while it lies in the cache; that is allowed where torch's own
kernel was seen to give the same bits for slabs as for the whole. For many rows the whole weight is decoded, into
memory that the next layer uses again.

*fused* never makes a dense weight: rows are decoded and multiplied in the cache of a thread, in float32 and an order of
summation of our own (`FrameReader.linear`).
"""

from __future__ import annotations

import functools
import math
import threading
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from ._frames import OpenFrame

_SLAB_NBYTES = 4 << 20
_MAX_SLAB_INPUT_ROWS = 8
_ROWS_ALIGNMENT = 64
_FUSED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_MAX_FUSED_INPUT_ROWS = 8
"""More are multiplied by torch, which is faster from there on."""


class _Scratch(threading.local):
    """Memory for decoded weights, one piece a thread, as large as the largest so far."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        nbytes = math.prod(shape) * dtype.itemsize
        if self._memory.numel() < nbytes:
            self._memory = torch.empty(0, dtype=torch.uint8)  # the old piece is freed before the new one is asked for
            self._memory = torch.empty(nbytes, dtype=torch.uint8)
        return self._memory[:nbytes].view(dtype).view(shape)


_scratch = _Scratch()


def linear_on_cpu(x: Tensor, frame: OpenFrame, shape: Sequence[int], bias: Tensor | None, mode: str) -> Tensor:
    rows, columns = shape
    if x.dtype != frame.dtype or x.shape[-1:] != (columns,):
        weight = torch.empty((rows, columns), dtype=frame.dtype)
        return linear(x, weight, bias)  # which says what is wrong, in torch's words
    if mode == "fused" and frame.dtype in _FUSED_DTYPES and x.numel() <= _MAX_FUSED_INPUT_ROWS * columns:
        return _linear_fused(x, frame, rows, bias)
    slab = _slab_rows(rows, columns * x.element_size())
    few = x.numel() <= _MAX_SLAB_INPUT_ROWS * columns
    if (
        few
        and slab < rows
        and _slabs_give_the_same_bits(
            x.dtype,
            tuple(x.shape),
            tuple(x.stride()),
            rows,
            slab,
            bias is not None,
            torch.get_num_threads(),
        )
    ):
        return _linear_by_slabs(x, frame, rows, columns, slab, bias)
    weight = _scratch.take(shape, frame.dtype)
    frame.decode(0, weight)
    return linear(x, weight, bias)


def _linear_fused(x: Tensor, frame: OpenFrame, rows: int, bias: Tensor | None) -> Tensor:
    output = frame.linear(x.reshape(-1, x.shape[-1]))
    if bias is not None:
        output += bias
    return output.to(x.dtype).view(*x.shape[:-1], rows)


def _linear_by_slabs(x: Tensor, frame: OpenFrame, rows: int, columns: int, slab: int, bias: Tensor | None) -> Tensor:
    output = x.new_empty((*x.shape[:-1], rows))
    for start, stop in _slabs(rows, slab):
        weight = _scratch.take((stop - start, columns), frame.dtype)
        frame.decode(start * columns, weight)
        output[..., start:stop] = linear(x, weight, None if bias is None else bias[start:stop])
    return output


def _slab_rows(rows: int, row_nbytes: int) -> int:
    """Rows of about _SLAB_NBYTES, which the kernels of torch take in equal steps."""
    wanted = max(1, _SLAB_NBYTES // max(row_nbytes, 1))
    return min(rows, max(_ROWS_ALIGNMENT, wanted // _ROWS_ALIGNMENT * _ROWS_ALIGNMENT))


def _slabs(rows: int, slab: int) -> Iterator[tuple[int, int]]:
    for start in range(0, rows, slab):
        yield start, min(rows, start + slab)


@functools.lru_cache(maxsize=4096)
def _slabs_give_the_same_bits(
    dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], rows: int, slab: int, bias: bool, threads: int
) -> bool:
    """Try it once, with random numbers: another order of summation shows in some of so many sums."""
    generator = torch.Generator().manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(dtype)

    x = torch.empty_strided(shape, stride, dtype=dtype).copy_(normal(*shape))
    weight, offset = normal(rows, shape[-1]), normal(rows) if bias else None
    whole = linear(x, weight, offset)
    parts = [
        linear(x, weight[start:stop], None if offset is None else offset[start:stop])
        for start, stop in _slabs(rows, slab)
    ]
    return bool(torch.equal(whole, torch.cat(parts, -1)))
