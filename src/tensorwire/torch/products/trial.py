"""What torch makes of sums that cancel: by its bits an order of summation is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import linear

from ...codec.products import Order
from .product import Product, Strides
from .ways import linear_by_slabs, part_of, rounded, sums
from .zeros import zeros_around

if TYPE_CHECKING:
    from torch import Tensor

_SUMS, _ROWS, _PLACES, _STEP = 256, 64, 8, 16
_TINY = 2.0**-103  # core/include/tensorwire.h says why


class _Weight(NamedTuple):
    words: Tensor
    bias: Tensor | None

    @classmethod
    def of_zeros(cls, rows: int, tile: Tensor, bias: Tensor | None, spans: Sequence[slice]) -> _Weight:
        """A weight of so many rows that has those of `tile`, or the first of them, at some places."""
        row_nbytes = tile.shape[1] * tile.itemsize
        raw = tile.view(torch.uint8).view(-1)
        parts = [(span.start * row_nbytes, raw[: (span.stop - span.start) * row_nbytes]) for span in spans]
        words = zeros_around(parts, rows * row_nbytes).view(tile.dtype).view(rows, -1)
        if bias is None:
            return cls(words, None)
        whole = bias.new_zeros(rows)
        for span in spans:
            whole[span] = bias[: span.stop - span.start]
        return cls(words, whole)


class Trial:
    """A product of torch's, of the true shape, with sums that cancel.

    At some places from the first row of the weight to the last one stand the same few rows, and zeros everywhere else:
    so the weight takes hardly any memory, and hardly any time to be read. A weight of fewer rows than these has some of
    them alone, and there are several products.
    """

    def __init__(self, product: Product) -> None:
        generator = torch.Generator(device="cpu").manual_seed(0)
        rows, columns, dtype = product.rows, product.columns, product.dtype
        wanted = max(_ROWS, _SUMS // product.num_inputs)
        together = min(rows, wanted)
        count = -(-wanted // together) * together
        self._tile, places = _cancelling_rows(count, columns, dtype, generator)
        if dtype is torch.bfloat16:
            self._tile[5::8] *= 2.0**-122  # orders that are alike may differ in what becomes of denormals
        self._x = _cancelling_inputs(product.shape, places, dtype, generator)
        self._inputs = self._x.to(torch.float32)  # for several orders
        if product.strides is Strides.APART:
            self._x = self._x.repeat(1, 2, 1)[:, 1:]
        self._bias: Tensor | None = None
        if product.bias:
            # What is left of sums that cancel has so few bits that it may be the same whether torch rounds before it
            # adds the bias. In some rows they do not.
            self._tile[3::4, places[: columns // 2]] = 0
            self._tile[3::4] *= 2.0**-8
            sizes = linear(self._x, self._tile).to(torch.float32).abs().view(-1, count).mean(0)
            self._bias = (_normal((count,), generator) * sizes).to(dtype)  # as large as the results, which keep theirs
        if rows < wanted:
            of_tile = [slice(start, start + rows) for start in range(0, count, rows)]
            self._weights = [_Weight(self._tile[part].clone(), part_of(self._bias, part)) for part in of_tile]
            self._places = [(weight, slice(0, rows), part) for weight, part in enumerate(of_tile)]
        else:
            starts: Sequence[int] = range(0, rows, count)
            if len(starts) > _PLACES:
                starts = [(rows - count) * step // (_PLACES - 1) for step in range(_PLACES)]
            spans = [slice(start, min(rows, start + count)) for start in starts]
            self._weights = [_Weight.of_zeros(rows, self._tile, self._bias, spans)]
            self._places = [(0, span, slice(0, span.stop - span.start)) for span in spans]
        self._results = [linear(self._x, weight.words, weight.bias) for weight in self._weights]

    def has_bits_of(self, order: Order) -> bool:
        """Whether the sums in this order are torch's."""
        found = sums(self._inputs, self._tile, order, threads=1)  # which is little work: others would be waited for
        # These are torch's in a product, too.
        tiny = (found != 0) & (found.abs() < _TINY) if order in (Order.PAIRS_512, Order.PAIRS_1024) else None
        ours = rounded(found, self._bias, self._x.dtype)
        for weight, span, of_tile in self._places:
            results, same = self._results[weight][..., span], ours[..., of_tile]
            if not _same_bits(results, same if tiny is None else torch.where(tiny[..., of_tile], results, same)):
                return False
        return True

    def allows_slabs(self, rows: int, threads: int) -> bool:
        """Whether torch has the same bits with so many rows at a time, each time on one thread of so many."""

        def by_slabs(weight: _Weight) -> Tensor:
            words = weight.words
            return linear_by_slabs(self._x, len(words), rows, weight.bias, threads, lambda _, a, b: words[a:b])

        return all(
            _same_bits(results, by_slabs(weight)) for weight, results in zip(self._weights, self._results, strict=True)
        )


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """A zero has a sign."""
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def _normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _cancelling_rows(count: int, columns: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of weights, in each of which some columns are the negatives of others, at random places; and the places:
    those of one half, those of the other half, that of an odd column more, which is tiny. They are of so many sizes
    that no sum is without rounding, not even of few columns."""
    half, is_odd, moved = columns // 2, columns % 2, _STEP * (count - 1)
    places = torch.randperm(columns, generator=generator, device="cpu")
    some = _normal((half + moved,), generator)
    some *= 2.0 ** torch.randint(0, 13, some.shape, generator=generator, dtype=torch.float32, device="cpu")
    odd = _normal((is_odd + is_odd * moved,), generator) * 2.0**-16
    first = torch.arange(half, device="cpu")
    firsts = torch.cat([first, len(some) + first, torch.full((is_odd,), 2 * len(some), device="cpu")])
    return _moved(torch.cat([some, -some, odd]).to(dtype), count, _STEP, firsts[places.argsort()]), places


def _cancelling_inputs(shape: Sequence[int], places: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Inputs that are the same at both columns of a pair. An odd column more is tiny."""
    half, is_odd, step = shape[-1] // 2, shape[-1] % 2, _STEP + 1
    count = math.prod(shape[:-1])
    some = _normal((half + step * (count - 1),), generator)
    odd = _normal((is_odd + is_odd * step * (count - 1),), generator) * 2.0**-10
    first = torch.arange(half, device="cpu")
    firsts = torch.cat([first, first, torch.full((is_odd,), len(some), device="cpu")])
    return _moved(torch.cat([some, odd]).to(dtype), count, step, firsts[places.argsort()]).view(shape)


def _moved(numbers: Tensor, count: int, step: int, firsts: Tensor) -> Tensor:
    """Rows of numbers, the first by their places, each of the others that of the one before it moved by a step.

    Few numbers are drawn then, and one operation makes all rows: each that takes several threads may wait long for them
    while a model is loaded.
    """
    return numbers.unfold(0, len(numbers) - step * (count - 1), step)[:, firsts].contiguous()
