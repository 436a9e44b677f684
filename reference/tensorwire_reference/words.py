"""Words, their split into exponent and rest, their zeros, and their ordinals."""

import numpy as np

from .layouts import Layout
from .planes import U64, ones


def to_words(data: bytes, layout: Layout) -> U64:
    """The little-endian words of `data`."""
    return np.frombuffer(data, f"<u{layout.word_nbytes}").astype(np.uint64)


def from_words(words: U64, layout: Layout) -> bytes:
    """Inverse of `to_words`."""
    return words.astype(f"<u{layout.word_nbytes}").tobytes()


def split(words: U64, layout: Layout, k: int = 0) -> tuple[U64, U64]:
    """x (the exponent, with `k` more bits below it) and the rests (R - k bits)."""
    low = _bits_below(layout, k)
    if layout.split == "signed":
        words = words ^ _top(layout)
    x = (words >> np.uint64(low)) & ones(layout.exponent_bits + k)
    rests = words & ones(low)
    if layout.split == "float":
        rests |= words >> np.uint64(layout.word_bits - 1) << np.uint64(low)
    return x, rests


def join(x: U64, rests: U64, layout: Layout, k: int = 0) -> U64:
    """Inverse of `split`."""
    low = _bits_below(layout, k)
    words: U64 = x << np.uint64(low) | rests & ones(low)
    if layout.split == "float":
        words |= rests >> np.uint64(low) << np.uint64(layout.word_bits - 1)
    elif layout.split == "signed":
        words ^= _top(layout)
    return words


def _bits_below(layout: Layout, k: int) -> int:
    """Bits of the word below x."""
    return layout.rest_bits - k - (layout.split == "float")


def _top(layout: Layout) -> np.uint64:
    top: np.uint64 = np.uint64(1 << layout.word_bits - 1)
    return top


def is_zero(words: U64, layout: Layout) -> np.ndarray:
    """Which words are zeros of the layout."""
    zeros: np.ndarray = words == 0
    if layout.split == "float":
        zeros |= words == _top(layout)
    return zeros


def ordinals(words: U64, layout: Layout) -> U64:
    """The order-preserving map of the bits."""
    if not layout.ordered:
        return words
    numbers: U64 = np.where(words & _top(layout), ~words & ones(layout.word_bits), words ^ _top(layout))
    return numbers


def from_ordinals(numbers: U64, layout: Layout) -> U64:
    """Inverse of `ordinals`, of numbers taken modulo 2^(8W)."""
    numbers = numbers & ones(layout.word_bits)
    if not layout.ordered:
        return numbers
    words: U64 = np.where(numbers & _top(layout), numbers ^ _top(layout), ~numbers & ones(layout.word_bits))
    return words
