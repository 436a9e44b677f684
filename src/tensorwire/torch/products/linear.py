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

import functools
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import linear

from ..._ground.copies import not_copied
from ...codec.products import Order, linear_orders
from ..frames.team import team
from .kind import ProductKind, Strides, kind_of
from .trial import Trial
from .ways import DTYPE_NAMES, any_flushes_denormals, decided_with_bias, linear_by_slabs, rounded

if TYPE_CHECKING:
    from torch import Tensor

    from ..frames.open_frame import OpenFrame

_SLAB_NBYTES = 4 << 20
_MAX_SLAB_INPUT_ROWS = 64
_ROWS_ALIGNMENT = 64
FUSED_ORDER = Order.SUMS_64
MAX_FUSED_INPUT_ROWS = 8
"""More are multiplied by torch, which is faster from there on."""
_MAX_INPUT_ROWS = {Order.PAIRS_512: 64, Order.PAIRS_1024: 64, Order.GEMV_16: 1, Order.GEMM_768: 64}
"""In these orders torch is fast with more, or has another order."""
_OF_WHOLE_PAIRS = (Order.PAIRS_512, Order.PAIRS_1024, Order.GEMM_768)
"""The partner of an odd column is 0 in the weight and, in oneDNN, what lies behind it in the inputs, of which the sign
of a sum that is zero depends."""

_log = logging.getLogger(__name__)


class _Scratch(threading.local):
    """Memory for decoded weights, one piece a thread, as large as the largest so far.

    A caller that takes it has it alone until it is given back: the handler of a signal may run a model in the middle of
    another one, in the same thread. After an error it is not given back, and the next one gets new memory.
    """

    __reduce_ex__ = not_copied("memory for one thread", "make another one")

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def take(self, nbytes: int) -> Tensor:
        memory, self._memory = self._memory, None
        if memory is None or memory.numel() < nbytes:
            memory = None  # the old piece is freed before the new one is asked for
            memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu")  # even if the default device is another one
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
    if mode == "fused" and frame.dtype in DTYPE_NAMES and x.numel() <= MAX_FUSED_INPUT_ROWS * columns:
        output = _multiplied(x, frame, FUSED_ORDER, bias)
        if output is not None:
            return output
    choice = _choice_for(kind_of(x, rows, bias))
    if choice.order is not None:
        output = _multiplied(x, frame, choice.order, bias)
        if output is not None:
            return output
    elif choice.slab is not None and choice.team == team():
        output = _decoded_by_slabs(x, frame, choice.slab, bias)
        if output is not None:
            return output
    memory = _scratch.take(rows * columns * x.element_size())
    weight = _as_weight(memory, rows, x)
    frame.decode(0, weight)
    output = linear(x, weight, bias)
    _scratch.give_back(memory)
    return output


def is_in_known_order(x: Tensor, shape: Sequence[int], bias: Tensor | None) -> bool:
    """Whether torch's order of summation for inputs like `x` is one of ours: then a decoded weight is of no use."""
    return x.shape[-1:] == tuple(shape[1:]) and _choice_for(kind_of(x, shape[0], bias)).order is not None


def _multiplied(x: Tensor, frame: OpenFrame, order: Order, bias: Tensor | None) -> Tensor | None:
    """None where the order alone does not say which bits come out."""
    if bias is not None and (bias.dtype != x.dtype or bias.shape != (frame.shape[0],)):
        return None
    output = frame.linear(x, order)
    if output is None:
        return None
    result = rounded(output, bias, x.dtype)
    return result if bias is None or bool(decided_with_bias(output).all()) else None


def _decoded_by_slabs(x: Tensor, frame: OpenFrame, slab: int, bias: Tensor | None) -> Tensor | None:
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


def _as_weight(memory: Tensor, rows: int, x: Tensor) -> Tensor:
    """The front of the memory as so many rows of a weight for inputs like `x`."""
    columns = x.shape[-1]
    return memory[: rows * columns * x.element_size()].view(x.dtype).view(rows, columns)


def _slab_rows(rows: int, row_nbytes: int, threads: int) -> int:
    """Rows of about _SLAB_NBYTES, or fewer, so that all threads have some; which the kernels of torch take in equal
    steps."""
    most = max(1, _SLAB_NBYTES // max(row_nbytes, 1))
    count = -(-rows // most)
    share = -(-rows // (-(-count // threads) * threads))
    return min(rows, -(-share // _ROWS_ALIGNMENT) * _ROWS_ALIGNMENT)


class _Choice(NamedTuple):
    """How a kind of product is made: in an order of ours, by slabs of so many rows, or of the whole weight.

    Slabs were tried with the team of threads that there was then. A process that was forked has none, and torch then
    multiplies a slab on all threads, and not on one. An order holds there as well.
    """

    order: Order | None = None
    slab: int | None = None
    team: int | None = None


class _FlushingError(Exception):
    """A thread of torch's flushes denormals."""


def _choice_for(kind: ProductKind) -> _Choice:
    """How a kind of product is made."""
    try:
        return _choose(kind)
    except _FlushingError:  # nothing is kept: the thread may stop it
        return _Choice()


@functools.lru_cache(maxsize=4096)
def _choose(kind: ProductKind) -> _Choice:
    """Try it, once for each kind of kind.

    It is no proof; it rests on two things. A kernel of torch takes its order of summation from what `ProductKind` has
    and not from the values: so what holds for one weight holds for all. And another order would be seen: the terms of
    every sum of the trial cancel, so that what is left are the errors of rounding, which every order makes otherwise.
    Few ordinary sums in BF16 would show it: a result keeps 8 bits, and an order changes the 24th.
    """
    if 0 in (kind.num_inputs, kind.rows, kind.columns) or kind.strides is Strides.OTHER:
        return _Choice()
    if kind.flushes:  # others may not: then bits depend on which thread of torch's has which rows
        return _Choice()
    name = DTYPE_NAMES.get(kind.dtype)
    is_odd = kind.dtype is torch.bfloat16 and kind.columns % 2 == 1
    orders = [
        order
        for order in (linear_orders(name) if name is not None else [])
        if kind.num_inputs <= _MAX_INPUT_ROWS.get(order, kind.num_inputs) and not (is_odd and order in _OF_WHOLE_PAIRS)
    ]
    slab = _slab_rows(kind.rows, kind.columns * kind.dtype.itemsize, kind.threads)
    # For inputs that lie apart torch takes many times as long, and slabs would take that several times.
    is_quick = kind.num_inputs <= _MAX_SLAB_INPUT_ROWS and kind.strides is Strides.USUAL
    by_slabs = slab < kind.rows and is_quick and not is_odd
    if not (orders or by_slabs):
        return _Choice()
    if any_flushes_denormals(kind.threads):  # a trial would see what becomes of denormals there
        raise _FlushingError
    trial = Trial(kind, slab if by_slabs else None)
    if found := trial.orders(orders):
        return _Choice(found[0])
    if name is not None:
        _say_slower(name)
    return _Choice(slab=slab, team=team()) if by_slabs and trial.allows_slabs() else _Choice()


@functools.cache
def _say_slower(dtype: str) -> None:
    _log.info(
        "torch sums products in %s in an order that tensorwire has no kernels for: weights are decoded first", dtype
    )
