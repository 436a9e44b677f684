"""Weights that meet the same input, such as query, key and value: the first that is multiplied multiplies all.

A compiled graph says which weights these are (`Group.multiply_all`). In eager torch nothing is known beforehand of what
is multiplied with what. The first product of a group computes the others along with
its own, in one launch. Each of the others takes its part if it comes next in this thread, with the very same input and
the bias that was used, in the same order of summation, on the same stream, within the same captured graph; else it
computes on its own. So a wrong guess costs time and never changes a result. A write that torch does not count, through
`.data` or by a kernel that says nothing of it, is not seen between two products of a group. Kernels promise that a part
has the bits of a product of its own in that order.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.utils.weak import TensorWeakRef

from ..._ground.copies import not_copied
from ..frames.turn import Turn, turn_of

if TYPE_CHECKING:
    from torch import Tensor

_MOST_MISSES = 2
"""So often in a row the parts that are left are not taken: then the weights do not meet the same input."""

_Written = tuple[object, ...]
_Summed = tuple[Sequence[int], Any]
"""The shape of inputs, and an order of summation."""


class JointProduct(Protocol):
    """The rows of several weights, one weight after the other, as one product: one launch."""

    max_inputs: int

    def in_order(self, order: Any) -> JointProduct:
        """The same in another order of summation."""

    def multiply(self, x: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """`x`, (count, columns), times the transpose of the rows, plus the bias: (count, rows)."""


class Group:
    """Weights that are multiplied together. It keeps none of them alive once a frame of theirs is gone."""

    __reduce_ex__ = not_copied("memory of a device", "call tensorwire.torch.prepare with the other model")

    def __init__(
        self, frames: Sequence[Tensor], rows: Sequence[int], biases: Sequence[Tensor | None], product: JointProduct
    ) -> None:
        """Biases are copied: when one was written to, its weight is multiplied on its own."""
        self._frames = [TensorWeakRef(frame) for frame in frames]
        self._rows = list(rows)
        self._biases = [_written_bias(bias) for bias in biases]
        self._bias = _one_behind_the_other(rows, biases)
        self._product: JointProduct | None = product
        self._misses = 0
        self._unlike: set[_Summed] = set()

    @property
    def is_open(self) -> bool:
        """Whether it multiplies."""
        if self._product is not None and any(frame() is None for frame in self._frames):
            self._product = None
        return self._product is not None

    def has(self, biases: Sequence[Tensor | None]) -> bool:
        """Whether it adds these, as they are now."""
        return [_written_bias(bias) for bias in biases] == self._biases

    def multiply(self, number: int, x: Tensor, inputs: Tensor, bias: Tensor | None, order: Any) -> Tensor | None:
        """`inputs`, (count, columns), times weight `number`, in an order; the others wait for their turn. None if it is
        none for all."""
        product = self._product if self.is_open else None  # read once: another thread may close it
        if product is None or len(inputs) > product.max_inputs or (x.shape, order) in self._unlike:
            return None
        input_now, bias_now = _written(x), _written_bias(bias)
        if input_now is None or bias_now is None or bias_now != self._biases[number]:
            return None
        together = product.in_order(order).multiply(inputs, self._bias, x.dtype)
        parts: list[Tensor | None] = [*self._parts_of(together)]
        own, parts[number] = parts[number], None
        _waiting.parts = _Parts(self, x, input_now, self._biases, order, turn_of(x.device), parts)
        return own

    def multiply_all(self, inputs: Tensor, biases: Mapping[int, Tensor | None]) -> list[Tensor]:
        """`inputs`, (count, columns), times each weight in the usual order, plus its bias of these by numbers of
        weights. Nothing if not all weights are there, or if it is none for all."""
        product = self._product if self.is_open else None
        if product is None or len(inputs) > product.max_inputs or len(biases) != len(self._rows):
            return []
        bias = _one_behind_the_other(self._rows, [biases[number] for number in range(len(biases))])
        return self._parts_of(product.multiply(inputs, bias, inputs.dtype))

    def _parts_of(self, together: Tensor) -> list[Tensor]:
        return [part.contiguous() for part in together.split(self._rows, 1)]

    def have_unlike_orders(self, shape: Sequence[int], *orders: Any) -> None:
        """Multiply one by one from now on where inputs of this shape are summed in one of these orders."""
        self._unlike.update((shape, order) for order in orders)

    def was_missed(self, missed: bool) -> None:
        """Count how often what had been computed along was not taken."""
        self._misses = self._misses + 1 if missed else 0
        if self._misses == _MOST_MISSES:
            self._product = None


class Member(NamedTuple):
    """A weight of a group."""

    group: Group
    number: int


@dataclass(eq=False)
class _Parts:
    """Products that were computed along, until the next product of this thread. The input is kept alive: no other
    tensor can come to lie where it is."""

    group: Group
    x: Tensor
    input_then: _Written
    biases: Sequence[_Written | None]
    order: Any
    turn: Turn
    parts: list[Tensor | None]
    taken: bool = False
    unlike: bool = False

    def take(self, number: int, x: Tensor, bias: Tensor | None, order: Any) -> Tensor | None:
        """The part of a member, once, if it is that of this input."""
        if (
            _written(x) != self.input_then
            or _written_bias(bias) != self.biases[number]
            or turn_of(x.device) != self.turn
        ):
            return None
        if order != self.order:
            self.group.have_unlike_orders(x.shape, order, self.order)
            self.unlike = True
            return None
        part, self.parts[number] = self.parts[number], None
        self.taken |= part is not None
        return part

    @property
    def is_empty(self) -> bool:
        return all(part is None for part in self.parts)

    def drop(self) -> None:
        """No other product takes a part."""
        self.group.was_missed(not (self.taken or self.unlike))


class _Waiting(threading.local):
    parts: _Parts | None = None


_waiting = _Waiting()


def multiply_together(
    member: Member | None, x: Tensor, inputs: Tensor, bias: Tensor | None, order: Any
) -> Tensor | None:
    """The product of a member, (count, rows); None if it is to be computed on its own.

    Every product on a device asks, also of a weight that is in no group: what was computed along waits no longer.

    Args:
        x: the input as the caller has it, by which it is known: a view that is made here counts writes anew.
        inputs: the same as (count, columns).
        order: of summation, in which the member is to be multiplied.
    """
    parts, _waiting.parts = _waiting.parts, None  # a signal's handler may run a model in the middle of this
    if parts is not None:
        found = None
        if member is not None and member.group is parts.group:
            found = parts.take(member.number, x, bias, order)
        if found is not None and not parts.is_empty:
            _waiting.parts = parts
        else:
            parts.drop()
        if found is not None:
            return found
    return None if member is None else member.group.multiply(member.number, x, inputs, bias, order)


def _written(x: Tensor) -> _Written | None:
    """What an input is known by: where it lies, and how often it was written to. None where torch does not count."""
    if x.is_inference():
        return None
    return x.untyped_storage()._cdata, x.data_ptr(), x._version, x.shape, x.stride(), x.dtype


def _written_bias(bias: Tensor | None) -> _Written | None:
    return () if bias is None else _written(bias)


def _one_behind_the_other(rows: Sequence[int], biases: Sequence[Tensor | None]) -> Tensor | None:
    """A bias for all. A negative zero changes no sum, not even one that is a zero."""
    some = next((bias for bias in biases if bias is not None), None)
    if some is None:
        return None
    return torch.cat(
        [some.new_full((count,), -0.0) if bias is None else bias for count, bias in zip(rows, biases, strict=True)]
    ).detach()
