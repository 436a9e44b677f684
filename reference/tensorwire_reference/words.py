"""Words, their split into exponent and rest, their zeros, and their ordinals."""

import numpy as np

from .layouts import Dtype
from .planes import U64, ones


def to_words(data: bytes, dtype: Dtype) -> U64:
    """The little-endian words of `data`."""
    return np.frombuffer(data, f"<u{dtype.word_nbytes}").astype(np.uint64)


def from_words(words: U64, dtype: Dtype) -> bytes:
    """Inverse of `to_words`."""
    return words.astype(f"<u{dtype.word_nbytes}").tobytes()


def split(words: U64, dtype: Dtype, k: int = 0) -> tuple[U64, U64]:
    """x (the exponent, with `k` more bits below it) and the rests (R - k bits)."""
    low = _bits_below(dtype, k)
    if dtype.split == "signed":
        words = words ^ _top(dtype)
    x = (words >> np.uint64(low)) & ones(dtype.exponent_bits + k)
    rests = words & ones(low)
    if dtype.split == "float":
        rests |= words >> np.uint64(dtype.word_bits - 1) << np.uint64(low)
    return x, rests


def join(x: U64, rests: U64, dtype: Dtype, k: int = 0) -> U64:
    """Inverse of `split`."""
    low = _bits_below(dtype, k)
    words: U64 = x << np.uint64(low) | rests & ones(low)
    if dtype.split == "float":
        words |= rests >> np.uint64(low) << np.uint64(dtype.word_bits - 1)
    elif dtype.split == "signed":
        words ^= _top(dtype)
    return words


def _bits_below(dtype: Dtype, k: int) -> int:
    """Bits of the word below x."""
    return dtype.rest_bits - k - (dtype.split == "float")


def _top(dtype: Dtype) -> np.uint64:
    return np.uint64(1 << dtype.word_bits - 1)


def is_zero(words: U64, dtype: Dtype) -> np.ndarray:
    """Which words are zeros of the dtype."""
    zeros = words == 0
    return zeros | (words == _top(dtype)) if dtype.split == "float" else zeros


def ordinals(words: U64, dtype: Dtype) -> U64:
    """The order-preserving map of the bits."""
    if not dtype.ordered:
        return words
    numbers: U64 = np.where(words & _top(dtype), ~words & ones(dtype.word_bits), words ^ _top(dtype))
    return numbers


def from_ordinals(numbers: U64, dtype: Dtype) -> U64:
    """Inverse of `ordinals`, of numbers taken modulo 2^(8W)."""
    numbers = numbers & ones(dtype.word_bits)
    if not dtype.ordered:
        return numbers
    words: U64 = np.where(numbers & _top(dtype), numbers ^ _top(dtype), ~numbers & ones(dtype.word_bits))
    return words
