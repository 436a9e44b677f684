"""What torch makes of sums that cancel: by its bits an order of summation is known."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch.nn.functional import linear

from ...codec.products import Order
from .kind import ProductKind, Strides
from .ways import decided_with_bias, linear_by_slabs, part_of, rounded, sums
from .zeros import zeros_around

if TYPE_CHECKING:
    from torch import Tensor

_ROWS, _PLACES, _STEP = 64, 8, 16
_RESULTS_OF_A_ROW = 8
"""From all rounds, at least: a kernel that torch has for one row alone may have one or two by chance."""
_EXTREME_INPUTS = 2.0**-64, 2.0**63, 1.0
_EXTREME_ROWS = 2.0**-80, 2.0**52, 2.0**-122, 2.0**-100
"""Scales, with which products lose bits, or all, or are too large, and weights are denormal. Orders that are alike may
differ there: in what becomes of denormals, in the sign of a zero, and in whether a product is rounded before it is
added."""
_TINY = 2.0**-103  # core/include/tensorwire.h says why
_AnyOrder = TypeVar("_AnyOrder")


class _Weight(NamedTuple):
    words: Tensor
    bias: Tensor | None

    def put(self, span: slice, words: Tensor, bias: Tensor | None) -> None:
        """Some rows. An operation of torch's would take several threads, and wait for them while a model is loaded."""
        ctypes.memmove(self.words[span].data_ptr(), words.data_ptr(), words.nbytes)
        if self.bias is not None:
            self.bias[span] = bias


class _Round(NamedTuple):
    """Products of torch's: inputs, some rows that all weights are made of, and the results of each weight."""

    x: Tensor
    tile: Tensor
    bias: Tensor | None
    weights: list[_Weight]
    results: list[Tensor]


class Trial:
    """Products of torch's, of the true shape, with sums that cancel.

    At some places from the first row of the weight to the last one stand the same few rows, and zeros everywhere else:
    so the weight takes hardly any memory, and hardly any time to be read. A weight of fewer rows than these has some of
    them alone, and there are several products. In each round other rows stand at each place.

    Products and sums on the CPU; a class for another device has both there.

    Attributes:
        spans: within how many columns sums cancel, a kind of rounds for each; 0 for all columns.
    """

    spans: Sequence[int] = (0,)

    def __init__(self, kind: ProductKind, slab: int | None = None) -> None:
        """`slab`: so many rows at a time are tried, too."""
        self._kind, self._slab = kind, slab
        rows, together = kind.rows, min(kind.rows, _ROWS)
        self._count = -(-_ROWS // together) * together
        if rows < _ROWS:
            self._places = [
                (number, slice(0, rows), slice(start, start + rows))
                for number, start in enumerate(range(0, self._count, rows))
            ]
        else:
            spans = [slice(start, min(rows, start + self._count)) for start in self._starts()]
            self._places = [(0, span, slice(0, span.stop - span.start)) for span in spans]
        self._compared: Sequence[tuple[int, slice, slice | Tensor]] = self._places
        """Which results of which weight are compared with an order's, and the rows of the tile that they are of."""

    def _starts(self) -> Sequence[int]:
        """Where the rows of the tile stand: everywhere; or at both ends and between, and there across the borders of
        slabs."""
        rows, count = self._kind.rows, self._count
        starts = range(0, rows, count)
        if len(starts) <= _PLACES:
            return starts
        last = rows - count
        found = [0]
        for step in range(1, _PLACES - 1):
            start = last * step // (_PLACES - 1)
            if self._slab is not None:
                start = max(1, round(start / self._slab)) * self._slab - count // 2
            if found[-1] + count <= start <= last - count:
                found.append(start)
        return [*found, last]

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """torch's product."""
        return linear(x, weight, bias)

    def _by_slabs(self, x: Tensor, weight: Tensor, bias: Tensor | None, slab: int) -> Tensor | None:
        """The same slab by slab, each on one thread. None where a thread flushes denormals."""
        rows, threads = self._kind.rows, self._kind.threads
        return linear_by_slabs(x, rows, slab, bias, threads, functools.partial(_slab_of, weight))

    def _sums(self, x: Tensor, tile: Tensor, order: Any) -> Tensor:
        """Ours in an order, float32, before the bias is added. It is little work: other threads would be waited for."""
        return sums(x, tile, order, threads=1)

    def orders(self, candidates: Sequence[_AnyOrder]) -> list[_AnyOrder]:
        """The candidates in which sums have torch's bits."""
        for each in self._rounds():
            candidates = [order for order in candidates if self._has_bits_of(order, each)]
            if not candidates:
                break
        return list(candidates)

    def allows_slabs(self) -> bool:
        """Whether torch has the same bits slab by slab."""
        assert self._slab is not None
        for each in self._rounds():
            for (words, bias), results in zip(each.weights, each.results, strict=True):
                found = self._by_slabs(each.x, words, bias, self._slab)
                if found is None or not _same_bits(results, found):
                    return False
        return True

    def _has_bits_of(self, order: object, each: _Round) -> bool:
        found = self._sums(each.x, each.tile, order)
        undecided = found.isnan()  # these are torch's in a product, too
        if order in (Order.PAIRS_512, Order.PAIRS_1024):
            undecided |= (found != 0) & (found.abs() < _TINY)
        ours = rounded(found, each.bias, each.x.dtype)
        if each.bias is not None:
            undecided |= ~decided_with_bias(found)
        for number, span, of_tile in self._compared:
            results = each.results[number][..., span]
            if not _same_bits(results, torch.where(undecided[..., of_tile], results, ours[..., of_tile])):
                return False
        return True

    def _rounds(self) -> Iterator[_Round]:
        """One after the other, in the same memory."""
        weights: list[_Weight] = []
        for span in self.spans:
            yield from self._rounds_of(span, weights)

    def _rounds_of(self, span: int, weights: list[_Weight]) -> Iterator[_Round]:
        """Rounds in which sums cancel within so many columns."""
        kind = self._kind
        dtype, count, columns = kind.dtype, self._count, kind.columns
        generator = torch.Generator(device="cpu").manual_seed(0)
        tile, places = _cancelling_rows(count, columns, dtype, generator, span)
        x = _cancelling_inputs(kind.shape, places, dtype, generator)
        weights += [] if weights else self._blank_weights(tile)
        num_rounds = -(-_RESULTS_OF_A_ROW // (kind.num_inputs * max(1, count // kind.rows)))
        ordinary = tile
        if kind.bias:
            # What is left of sums that cancel has so few bits that it may be the same whether torch rounds before it
            # adds the bias. In some rows they do not, which in turn say little of the order.
            ordinary = tile.clone()
            ordinary[3::4, places[: columns // 2]] = 0
            ordinary[3::4] *= 2.0**-8
            num_rounds = max(2, num_rounds)
        yield from self._some_rounds(x, ordinary, range(num_rounds), weights, generator)
        if dtype is torch.float16:  # products are precise in float32, and none is too large
            return
        tile = tile * _scales(_EXTREME_ROWS, torch.arange(count, device="cpu")[:, None], dtype)
        numbers = torch.arange(kind.num_inputs, device="cpu").view(*kind.shape[:-1], 1)
        for number in range(-(-len(_EXTREME_INPUTS) // kind.num_inputs)):
            extreme = x * _scales(_EXTREME_INPUTS, numbers + number, dtype)
            yield from self._some_rounds(extreme, tile, [number], weights, generator)

    def _some_rounds(
        self, x: Tensor, tile: Tensor, firsts: Iterable[int], weights: list[_Weight], generator: torch.Generator
    ) -> Iterator[_Round]:
        """Rounds that begin with these rows of the tile."""
        bias: Tensor | None = None
        if self._kind.bias:
            sizes = linear(x, tile).to(torch.float32).abs().nan_to_num(0, 0).view(-1, len(tile)).mean(0)
            # As large as the results, which keep theirs.
            bias = (_normal((len(tile),), generator) * sizes).to(tile.dtype).repeat(2)
        if self._kind.strides is Strides.APART:
            x = x.repeat(1, 2, 1)[:, 1:]
        twice = tile.repeat(2, 1)
        for first in firsts:
            rows = slice(first, first + len(tile))
            some, of_bias = twice[rows], part_of(bias, rows)
            for number, span, of_tile in self._places:
                weights[number].put(span, some[of_tile], part_of(of_bias, of_tile))
            yield _Round(x, some, of_bias, weights, [self._linear(x, weight.words, weight.bias) for weight in weights])

    def _blank_weights(self, tile: Tensor) -> list[_Weight]:
        """Weights of zeros; in a large one those at the places alone take memory."""
        rows, columns = self._kind.rows, tile.shape[1]

        def weight(words: Tensor) -> _Weight:
            return _Weight(words, tile.new_zeros(rows) if self._kind.bias else None)

        if rows < len(tile):
            return [weight(tile.new_zeros(rows, columns)) for _ in self._places]
        row_nbytes = columns * tile.itemsize
        blank = torch.zeros(len(tile) * row_nbytes, dtype=torch.uint8, device="cpu")
        parts = [
            (span.start * row_nbytes, blank[: (span.stop - span.start) * row_nbytes]) for _, span, _ in self._places
        ]
        return [weight(zeros_around(parts, rows * row_nbytes).view(tile.dtype).view(rows, columns))]


def _slab_of(words: Tensor, worker: int, start: int, stop: int) -> Tensor:
    return words[start:stop]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """A zero has a sign."""
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def _scales(values: Sequence[float], numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """One after the other, for rows of these numbers."""
    return torch.tensor(values, dtype=dtype, device="cpu")[numbers % len(values)]


def _normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _cancelling_rows(
    count: int, columns: int, dtype: torch.dtype, generator: torch.Generator, span: int = 0
) -> tuple[Tensor, Tensor]:
    """Rows of weights, in each of which some columns are the negatives of others, at random places within each `span`
    columns; and the places: those of one half, those of the other half, that of an odd column more, which is tiny. They
    are of so many sizes that no sum is without rounding, not even of few columns. `span` is an even part
    of the columns, or 0 for all."""
    half, is_odd, moved = columns // 2, columns % 2, _STEP * (count - 1)
    span = span or columns
    starts = range(0, columns, span)
    of_spans = [start + torch.randperm(span, generator=generator, device="cpu") for start in starts]
    halves = [places.split([span // 2, span - span // 2]) for places in of_spans]
    places = torch.cat([part for side in zip(*halves, strict=True) for part in side])
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
