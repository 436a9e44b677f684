"""Layouts as the core has them, and the fields of floats, which follow from them."""

from __future__ import annotations

from typing import NamedTuple

from ..view.dtypes import SPLITS, Layout
from . import core


def core_layout(layout: Layout) -> core.Layout:
    """The core's form of a layout; whether its numbers go together is left to the core.

    Raises:
        ValueError: a number is none of a byte, there are no such words or no such split.
        TypeError: it is no layout.
    """
    if not isinstance(layout, Layout):
        raise TypeError(f"expected a tensorwire.Layout, got {type(layout).__name__}")
    numbers = layout[:3]
    if any(not isinstance(number, int) or not 0 <= number < 256 for number in numbers):
        raise ValueError(f"expected numbers of 0 to 255, got {layout}")
    if layout.word_nbytes not in (1, 2, 4, 8):
        raise ValueError(f"expected word_nbytes 1, 2, 4 or 8, got {layout}")
    if layout.split not in SPLITS:
        raise ValueError(f"expected split none, float, unsigned or signed, got {layout}")
    return core.Layout(*numbers, SPLITS.index(layout.split), bool(layout.ordered))


def word_bits(layout: Layout | None) -> int:
    """Bits of a word, and so of an element of which nothing else is said; errors are those of `core_layout`."""
    return 8 * core_layout(layout).word_nbytes if layout is not None else 8


def as_layout(row: core.Layout) -> Layout:
    """A layout of the core's."""
    return Layout(row.word_nbytes, row.exponent_bits, row.rest_bits, SPLITS[row.split], bool(row.ordered))


class FloatFields(NamedTuple):
    """The fields of a float. Above them stands the sign.

    Attributes:
        bias: what is added to an exponent before it is stored; that of 1.0 is 0.
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int


def float_fields(dtype: str) -> FloatFields | None:
    """The fields of a float dtype whose words frames split. None for any other dtype: of the 11 exponent bits of F64
    frames take 8 for its exponent, an element of C64 has two exponents, and I8 and U8 are split into halves, which are
    no fields of a float."""
    bits, layout = core.find_dtype(dtype) or (0, core.Layout())
    if SPLITS[layout.split] != "float" or bits != 8 * layout.word_nbytes or bits == 64:
        return None
    exponent_bits, rest_bits = layout.exponent_bits, layout.rest_bits
    return FloatFields(exponent_bits, rest_bits - 1, (1 << (exponent_bits - 1)) - (not dtype.endswith("FNUZ")))
