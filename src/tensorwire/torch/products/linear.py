"""A product with a compressed weight on the CPU, with the bits of ``torch.nn.functional.linear`` with the dense one.

Which way it goes is tried out once for each kind of product (`_choose`):

- rows are decoded and multiplied in the cache of a thread, or in its registers, in torch's own order of summation, if
  that is one of those that we have kernels for (`PlacedFrame.linear`);
- for few rows of input the weight is decoded slab by slab, each by one thread, in which torch multiplies it while it
  lies in the cache;
- otherwise the whole weight is decoded, into memory that the next layer uses again.

*fused* takes the first way always, in one order of summation on every CPU.
"""

from __future__ import annotations

import enum
import functools
import itertools
import logging
import math
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import linear

from ...codec.products import Order, linear_dense, linear_orders
from ..frames.team import on_team, team
from .zeros import zeros_around

if TYPE_CHECKING:
    from torch import Tensor

    from ..frames.open_frame import OpenFrame

_SLAB_NBYTES = 4 << 20
_MAX_SLAB_INPUT_ROWS = 64
_ROWS_ALIGNMENT = 64
FUSED_ORDER = Order.SUMS_64
MAX_FUSED_INPUT_ROWS = 8
"""More are multiplied by torch, which is faster from there on."""
_DTYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16"}
_MAX_INPUT_ROWS = {Order.PAIRS_512: 64, Order.PAIRS_1024: 64, Order.GEMV_16: 1, Order.GEMM_768: 64}
"""In these orders torch is fast with more, or has another order."""
_TRIAL_SUMS, _TRIAL_ROWS, _TRIAL_PLACES, _TRIAL_STEP = 256, 64, 8, 16
_TINY, _LEAST_NORMAL = 2.0**-103, 2.0**-126  # core/include/tensorwire.h says why

_log = logging.getLogger(__name__)


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


def multiply(x: Tensor, frame: OpenFrame, shape: Sequence[int], bias: Tensor | None, mode: str) -> Tensor:
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
    if mode == "fused" and frame.dtype in _DTYPE_NAMES and x.numel() <= MAX_FUSED_INPUT_ROWS * columns:
        output = _in_order(x, frame, FUSED_ORDER, bias)
        if output is not None:
            return output
    choice = _choose(product_of(x, rows, bias))
    if choice.order is not None:
        output = _in_order(x, frame, choice.order, bias)
        if output is not None:
            return output
    elif choice.slab is not None:
        return _decoded_by_slabs(x, frame, choice.slab, bias)
    memory = _scratch.take(rows * columns * x.element_size())
    weight = _as_weight(memory, rows, x)
    frame.decode(0, weight)
    output = linear(x, weight, bias)
    _scratch.give_back(memory)
    return output


def is_in_known_order(x: Tensor, shape: Sequence[int], bias: Tensor | None) -> bool:
    """Whether torch's order of summation for inputs like `x` is one of ours: then a decoded weight is of no use."""
    return x.shape[-1:] == tuple(shape[1:]) and _choose(product_of(x, shape[0], bias)).order is not None


def _in_order(x: Tensor, frame: OpenFrame, order: Order, bias: Tensor | None) -> Tensor | None:
    """None where the order alone does not say which bits come out."""
    if bias is not None and (bias.dtype != x.dtype or bias.shape != (frame.shape[0],)):
        return None
    output = frame.linear(x, order)
    if output is None:
        return None
    rounded = _rounded(output, bias, x.dtype)
    if bias is None:
        return rounded
    # With the bias, which is in `output` now, there may be a NaN, which may be any, or a denormal, which VDPBF16PS's
    # companion rounds to zero.
    size = output.abs()
    return rounded if bool(((size >= _LEAST_NORMAL) | (size == 0)).all()) else None


def _rounded(output: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Sums in float32 as torch makes a result of them: it adds the bias before it rounds."""
    if bias is not None:
        output += bias
    return output.to(dtype)


def _decoded_by_slabs(x: Tensor, frame: OpenFrame, slab: int, bias: Tensor | None) -> Tensor:
    rows, columns = frame.shape
    threads = torch.get_num_threads()
    nbytes = slab * columns * x.element_size()
    memory = _scratch.take(threads * nbytes)

    def decoded(worker: int, start: int, stop: int) -> Tensor:
        weight = _as_weight(memory[worker * nbytes :], stop - start, x)
        frame.decode(start * columns, weight, threads=None if team() is None else 1)
        return weight

    output = linear_by_slabs(x, rows, slab, bias, threads, decoded)
    _scratch.give_back(memory)
    return output


def linear_by_slabs(
    x: Tensor, rows: int, slab: int, bias: Tensor | None, threads: int, weights: Callable[[int, int, int], Tensor]
) -> Tensor:
    """A slab a thread.

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
                output[..., part] = linear(x, weights(worker, part.start, part.stop), _part(bias, part))

    on_team(work, threads)
    return output


def _as_weight(memory: Tensor, rows: int, x: Tensor) -> Tensor:
    """The front of the memory as so many rows of a weight for inputs like `x`."""
    columns = x.shape[-1]
    return memory[: rows * columns * x.element_size()].view(x.dtype).view(rows, columns)


class Layout(enum.Enum):
    """How inputs lie in memory.

    APART are single inputs that do not lie one behind the other, such as the last position of each prompt: torch makes
    one product for each of them, so how far apart they lie is not asked for.
    """

    USUAL = enum.auto()
    APART = enum.auto()
    OTHER = enum.auto()


@functools.lru_cache(maxsize=4096)
def layout_of(shape: Sequence[int], strides: Sequence[int]) -> Layout:
    """USUAL is that of a new tensor."""
    if strides == tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))):
        return Layout.USUAL
    apart = len(shape) == 3 and shape[1] == strides[2] == 1 and shape[2] <= strides[0] != strides[1]
    return Layout.APART if apart else Layout.OTHER


def _slab_rows(rows: int, row_nbytes: int, threads: int) -> int:
    """Rows of about _SLAB_NBYTES, or fewer, so that all threads have some; which the kernels of torch take in equal
    steps."""
    most = max(1, _SLAB_NBYTES // max(row_nbytes, 1))
    count = -(-rows // most)
    share = -(-rows // (-(-count // threads) * threads))
    return min(rows, -(-share // _ROWS_ALIGNMENT) * _ROWS_ALIGNMENT)


class Product(NamedTuple):
    """All that torch may choose a kernel by, and in that kernel an order of summation: the values are not among it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: Layout
    rows: int
    bias: bool
    threads: int
    flushes: bool
    settings: tuple[object, ...]

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def num_inputs(self) -> int:
        return math.prod(self.shape[:-1])


def product_of(x: Tensor, rows: int, bias: Tensor | None) -> Product:
    layout, threads = layout_of(x.shape, x.stride()), torch.get_num_threads()
    return Product(x.dtype, x.shape, layout, rows, bias is not None, threads, _flushes_denormals(), _settings())


_allows_f16_sums = getattr(torch._C, "_get_cpu_allow_fp16_reduced_precision_reduction", lambda: None)


def _settings() -> tuple[object, ...]:
    """What torch chooses a kernel by, for a product on the CPU. Its other settings are for other devices.

    From torch 2.9 on the precision of oneDNN's products counts, whichever call has set it. The older
    `get_float32_matmul_precision` cannot be asked there: it raises once any device has a precision that it cannot name.
    """
    onednn = torch.backends.mkldnn
    products = getattr(onednn, "matmul", None)
    precision = torch.get_float32_matmul_precision() if products is None else products.fp32_precision
    deterministic = torch.are_deterministic_algorithms_enabled(), getattr(onednn, "deterministic", None)
    return onednn.enabled, precision, *deterministic, _allows_f16_sums()


_least_normal = sys.float_info.min


def _flushes_denormals() -> bool:
    """Whether this thread does. `torch.set_flush_denormal` is for one thread alone, and nothing tells what it set."""
    return _least_normal / 2 == 0


class _Choice(NamedTuple):
    """How a kind of product is made: in an order of ours, by slabs of so many rows, or of the whole weight."""

    order: Order | None = None
    slab: int | None = None


@functools.lru_cache(maxsize=4096)
def _choose(product: Product) -> _Choice:
    """Try it, once for each kind of product.

    It is no proof; it rests on two things. A kernel of torch takes its order of summation from what `Product` has
    and not from the values: so what holds for one weight holds for all. And another order would be seen: the terms of
    every sum of the trial cancel, so that what is left are the errors of rounding, which every order makes otherwise.
    Few ordinary sums in BF16 would show it: a result keeps 8 bits, and an order changes the 24th.
    """
    if 0 in (product.num_inputs, product.rows, product.columns) or product.layout is Layout.OTHER:
        return _Choice()
    if product.flushes:  # others may not: then bits depend on which thread of torch's has which rows
        return _Choice()
    name = _DTYPE_NAMES.get(product.dtype)
    orders = [
        order
        for order in (linear_orders(name) if name is not None else [])
        if product.num_inputs <= _MAX_INPUT_ROWS.get(order, product.num_inputs)
    ]
    slab = _slab_rows(product.rows, product.columns * product.dtype.itemsize, product.threads)
    # For inputs that lie apart torch takes many times as long, and slabs would take that several times.
    by_slabs = slab < product.rows and product.num_inputs <= _MAX_SLAB_INPUT_ROWS and product.layout is Layout.USUAL
    if not (orders or by_slabs):
        return _Choice()
    trial = Trial(product)
    for order in orders:
        if trial.has_bits_of(order):
            return _Choice(order)
    if name is not None:
        _say_slower(name)
    return _Choice(slab=slab) if by_slabs and trial.allows_slabs(slab, product.threads) else _Choice()


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
        wanted = max(_TRIAL_ROWS, _TRIAL_SUMS // product.num_inputs)
        together = min(rows, wanted)
        count = -(-wanted // together) * together
        self._tile, places = _cancelling_rows(count, columns, dtype, generator)
        if dtype is torch.bfloat16:
            self._tile[5::8] *= 2.0**-122  # orders that are alike may differ in what becomes of denormals
        self._x = _cancelling_inputs(product.shape, places, dtype, generator)
        self._inputs = self._x.to(torch.float32)  # for several orders
        if product.layout is Layout.APART:
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
            self._weights = [_Weight(self._tile[part].clone(), _part(self._bias, part)) for part in of_tile]
            self._places = [(weight, slice(0, rows), part) for weight, part in enumerate(of_tile)]
        else:
            starts: Sequence[int] = range(0, rows, count)
            if len(starts) > _TRIAL_PLACES:
                starts = [(rows - count) * step // (_TRIAL_PLACES - 1) for step in range(_TRIAL_PLACES)]
            spans = [slice(start, min(rows, start + count)) for start in starts]
            self._weights = [_Weight.of_zeros(rows, self._tile, self._bias, spans)]
            self._places = [(0, span, slice(0, span.stop - span.start)) for span in spans]
        self._results = [linear(self._x, weight.words, weight.bias) for weight in self._weights]

    def has_bits_of(self, order: Order) -> bool:
        """Whether the sums in this order are torch's."""
        found = sums(self._inputs, self._tile, order, threads=1)  # which is little work: others would be waited for
        # These are torch's in a product, too.
        tiny = (found != 0) & (found.abs() < _TINY) if order in (Order.PAIRS_512, Order.PAIRS_1024) else None
        rounded = _rounded(found, self._bias, self._x.dtype)
        for weight, span, of_tile in self._places:
            results, ours = self._results[weight][..., span], rounded[..., of_tile]
            if not _same_bits(results, ours if tiny is None else torch.where(tiny[..., of_tile], results, ours)):
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


@functools.cache
def _say_slower(dtype: str) -> None:
    _log.info(
        "torch sums products in %s in an order that tensorwire has no kernels for: weights are decoded first", dtype
    )


def _part(bias: Tensor | None, part: slice) -> Tensor | None:
    return None if bias is None else bias[part]


def sums(x: Tensor, weight: Tensor, order: Order, threads: int) -> Tensor:
    """``x @ weight.t()`` with a dense weight: float32, (..., rows)."""
    (rows, columns), count = weight.shape, math.prod(x.shape[:-1])
    inputs = x.to(torch.float32).contiguous()
    outputs = torch.empty((*x.shape[:-1], rows), dtype=torch.float32, device="cpu")
    linear_dense(
        _DTYPE_NAMES[weight.dtype], weight.data_ptr(), rows, columns, order, inputs.data_ptr(), count,
        outputs.data_ptr(), threads, team(),
    )  # fmt: skip
    return outputs


def _normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _cancelling_rows(count: int, columns: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of weights, in each of which some columns are the negatives of others, at random places; and the places:
    those of one half, those of the other half, that of an odd column more, which is tiny. They are of so many sizes
    that no sum is without rounding, not even of few columns."""
    half, is_odd, moved = columns // 2, columns % 2, _TRIAL_STEP * (count - 1)
    places = torch.randperm(columns, generator=generator, device="cpu")
    some = _normal((half + moved,), generator)
    some *= 2.0 ** torch.randint(0, 13, some.shape, generator=generator, dtype=torch.float32, device="cpu")
    odd = _normal((is_odd + is_odd * moved,), generator) * 2.0**-16
    first = torch.arange(half, device="cpu")
    firsts = torch.cat([first, len(some) + first, torch.full((is_odd,), 2 * len(some), device="cpu")])
    return _moved(torch.cat([some, -some, odd]).to(dtype), count, _TRIAL_STEP, firsts[places.argsort()]), places


def _cancelling_inputs(shape: Sequence[int], places: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Inputs that are the same at both columns of a pair. An odd column more is tiny."""
    half, is_odd, step = shape[-1] // 2, shape[-1] % 2, _TRIAL_STEP + 1
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
