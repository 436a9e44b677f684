"""A product with a compressed weight on the CPU.

*exact* gives the bits of ``torch.nn.functional.linear`` with the dense weight. For few rows of input the weight is
decoded slab by slab, each of which torch multiplies while it lies in the cache; that is allowed where torch's own
kernel was seen to give the same bits for slabs as for the whole (`_slabs_give_the_same_bits`). Otherwise the whole
weight is decoded, into memory that the next layer uses again.

*fused* never makes a dense weight: rows are decoded and multiplied in the cache of a thread, or in its registers, in
float32 and an order of summation of our own (`PlacedFrame.linear`).
"""

from __future__ import annotations

import functools
import math
import mmap
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import linear

from .repeated import repeated

if TYPE_CHECKING:
    from torch import Tensor

    from ..frames.open_frame import OpenFrame

_SLAB_NBYTES = 4 << 20
_MAX_SLAB_INPUT_ROWS = 8
_ROWS_ALIGNMENT = 64
_FUSED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_FUSED_INPUT_ROWS = 8
"""More are multiplied by torch, which is faster from there on."""
_TRIALS = 4
_TRIAL_ROWS = 64
_PAGE_NBYTES = mmap.PAGESIZE


def _bytes(nbytes: int) -> Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")  # whatever the default device is


class _Scratch(threading.local):
    """Memory for decoded weights, one piece a thread, as large as the largest so far.

    A caller that takes it has it alone until it is given back: the handler of a signal may run a model in the middle of
    another one, in the same thread. After an error it is not given back, and the next one gets new memory.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def take(self, nbytes: int) -> Tensor:
        memory, self._memory = self._memory, None
        if memory is None or memory.numel() < nbytes:
            memory = None  # the old piece is freed before the new one is asked for
            memory = _bytes(nbytes)
        return memory

    def give_back(self, memory: Tensor) -> None:
        self._memory = memory


_scratch = _Scratch()


def linear_on_cpu(x: Tensor, frame: OpenFrame, shape: Sequence[int], bias: Tensor | None, mode: str) -> Tensor:
    """`x`, (..., columns), times the transpose of the weight, plus `bias`, (rows,): (..., rows), of the dtype of `x`.

    Thread-safe: memory for decoded weights belongs to the thread.

    Args:
        frame: the weight, with all its blocks in memory.
        shape: of the weight, (rows, columns).
        bias: None for none.
        mode: "exact" or "fused".

    Raises:
        FormatError: a block is damaged.
        RuntimeError: torch's own, where dtype or shape of `x` are not the weight's.
    """
    rows, columns = shape
    if x.dtype != frame.dtype or x.shape[-1:] != (columns,):
        weight = torch.empty((rows, columns), dtype=frame.dtype)
        return linear(x, weight, bias)  # which says what is wrong, in torch's words
    if mode == "fused" and frame.dtype in _FUSED_DTYPES and x.numel() <= MAX_FUSED_INPUT_ROWS * columns:
        return _linear_fused(x, frame, rows, bias)
    slab = _slab_rows(rows, columns * x.element_size())
    few = 0 < x.numel() <= _MAX_SLAB_INPUT_ROWS * columns and has_usual_strides(x)
    if few and slab < rows and _slabs_give_the_same_bits(_product_of(x, rows, bias), slab):
        return _linear_by_slabs(x, frame, rows, slab, bias)
    memory = _scratch.take(rows * columns * x.element_size())
    weight = _as_weight(memory, rows, x)
    frame.decode(0, weight)
    output = linear(x, weight, bias)
    _scratch.give_back(memory)
    return output


def _linear_fused(x: Tensor, frame: OpenFrame, rows: int, bias: Tensor | None) -> Tensor:
    output = frame.linear(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))
    if bias is not None:
        output += bias
    return output.to(x.dtype).view(*x.shape[:-1], rows)


def _linear_by_slabs(x: Tensor, frame: OpenFrame, rows: int, slab: int, bias: Tensor | None) -> Tensor:
    output = x.new_empty((*x.shape[:-1], rows))
    columns = x.shape[-1]
    memory = _scratch.take(slab * columns * x.element_size())
    part = _as_weight(memory, slab, x)
    for start in range(0, rows, slab):
        stop = min(rows, start + slab)
        weight = part if stop - start == slab else part[: stop - start]
        frame.decode(start * columns, weight)
        output[..., start:stop] = linear(x, weight, None if bias is None else bias[start:stop])
    _scratch.give_back(memory)
    return output


def _as_weight(memory: Tensor, rows: int, x: Tensor) -> Tensor:
    """The front of the memory as so many rows of a weight for inputs like `x`."""
    columns = x.shape[-1]
    return memory[: rows * columns * x.element_size()].view(x.dtype).view(rows, columns)


def has_usual_strides(x: Tensor) -> bool:
    """Whether its strides are those of a new tensor. For a slice of one row, which has others, torch takes a path that
    is many times slower; slabs, and their trial, would take it several times."""
    expected = 1
    for size, step in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if step != expected:
            return False
        expected *= size
    return True


def _slab_rows(rows: int, row_nbytes: int) -> int:
    """Rows of about _SLAB_NBYTES, which the kernels of torch take in equal steps."""
    wanted = max(1, _SLAB_NBYTES // max(row_nbytes, 1))
    return min(rows, max(_ROWS_ALIGNMENT, wanted // _ROWS_ALIGNMENT * _ROWS_ALIGNMENT))


class _Product(NamedTuple):
    """All that torch may choose a kernel by, and in that kernel an order of summation: the values are not among it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    rows: int
    bias: bool
    threads: int
    settings: tuple[object, ...]


def _product_of(x: Tensor, rows: int, bias: Tensor | None) -> _Product:
    return _Product(x.dtype, tuple(x.shape), rows, bias is not None, torch.get_num_threads(), _settings())


def _settings() -> tuple[object, ...]:
    """What torch chooses a kernel by, for a product on the CPU. Its other settings are for other devices.

    From torch 2.9 on the precision of oneDNN's products counts, whichever call has set it. The older
    `get_float32_matmul_precision` cannot be asked there: it raises once any device has a precision that it cannot name.
    """
    products = getattr(torch.backends.mkldnn, "matmul", None)
    precision = torch.get_float32_matmul_precision() if products is None else products.fp32_precision
    return torch.backends.mkldnn.enabled, precision


@functools.lru_cache(maxsize=4096)
def _slabs_give_the_same_bits(product: _Product, slab: int) -> bool:
    """Try it, once for each kind of product.

    It is no proof; it rests on two things. A kernel of torch takes its order of summation from what `_Product` has
    and not from the values: so what holds for one weight holds for all. And another order would be seen: the terms of
    every sum of the trial cancel, so that what is left are the errors of rounding, which every order makes otherwise.
    Few ordinary sums in BF16 would show it: a result keeps 8 bits, and an order changes the 24th.

    The weight has few different rows, again and again, so that the trial reads them from the cache; all rows of the
    whole are compared. Slabs with the same rows give the same bits: one of each kind is multiplied.
    """
    generator = torch.Generator(device="cpu").manual_seed(0)
    rows, columns = product.rows, product.shape[-1]
    tile, pairs = _cancelling_rows(columns, product.dtype, generator)
    row_nbytes = columns * product.dtype.itemsize
    weight = repeated(tile.view(torch.uint8).view(-1), rows * row_nbytes).view(product.dtype).view(rows, columns)
    x = torch.empty(product.shape, dtype=product.dtype, device="cpu")
    for _ in range(_TRIALS):
        x.copy_(_cancelling_inputs(product.shape, pairs, generator))
        bias = _repeated_bias(product, len(tile), generator) if product.bias else None
        whole = linear(x, weight, bias)
        parts: dict[tuple[int, int], Tensor] = {}
        for start in range(0, rows, slab):
            part = slice(start, min(rows, start + slab))
            kind = (start % len(tile), part.stop - start)
            if kind not in parts:
                parts[kind] = linear(x, weight[part], None if bias is None else bias[part])
            if not torch.equal(whole[..., part], parts[kind]):
                return False
    return True


def _repeated_bias(product: _Product, period: int, generator: torch.Generator) -> Tensor:
    bias = _normal((period,), generator).mul_(2.0**-16).to(product.dtype)
    return bias.repeat(-(-product.rows // period))[: product.rows]


def _normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _cancelling_rows(columns: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of weights, whole pages, of which the columns of the second half are the negatives of those of the first, at
    random places; and the pairs, (2, columns // 2). An odd column more is tiny."""
    order = torch.randperm(columns, generator=generator, device="cpu")
    pairs = order[: columns // 2 * 2].view(2, -1)
    period = _PAGE_NBYTES // math.gcd(columns * dtype.itemsize, _PAGE_NBYTES)
    rows = _normal((-(-_TRIAL_ROWS // period) * period, columns), generator)
    rows[:, pairs[1]] = -rows[:, pairs[0]]
    rows[:, order[columns // 2 * 2 :]] *= 2.0**-16
    return rows.to(dtype), pairs


def _cancelling_inputs(shape: Sequence[int], pairs: Tensor, generator: torch.Generator) -> Tensor:
    """Inputs that are the same at both columns of a pair, of many sizes, so that no sum is without rounding."""
    inputs = _normal(shape, generator)
    sizes = torch.randint(0, 7, (shape[-1],), generator=generator, device="cpu")
    inputs *= 2.0**sizes
    inputs[..., pairs[1]] = inputs[..., pairs[0]]
    return inputs
