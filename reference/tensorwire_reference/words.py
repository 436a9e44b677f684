"""Section "Splitting a word"."""

import numpy as np

from .header import Dtype
from .planes import U64, ones


def to_words(data: bytes, dtype: Dtype) -> U64:
    """The little-endian words of `data`."""
    return np.frombuffer(data, f"<u{dtype.word_nbytes}").astype(np.uint64)


def from_words(words: U64, dtype: Dtype) -> bytes:
    """Inverse of `to_words`."""
    return words.astype(f"<u{dtype.word_nbytes}").tobytes()


def rest_width(dtype: Dtype, k: int = 0) -> int:
    """R, when the exponent goes together with `k` bits of the mantissa."""
    return dtype.mantissa_bits + 1 - k


def split(words: U64, dtype: Dtype, k: int = 0) -> tuple[U64, U64]:
    """Float words into x (E + k bits) and rests (R bits)."""
    low = dtype.mantissa_bits - k
    x = (words >> np.uint64(low)) & ones(dtype.exponent_bits + k)
    sign = words >> np.uint64(dtype.bits - 1)
    return x, sign << np.uint64(low) | words & ones(low)


def join(x: U64, rests: U64, dtype: Dtype, k: int = 0) -> U64:
    """Inverse of `split`."""
    low = dtype.mantissa_bits - k
    sign = rests >> np.uint64(low)
    words: U64 = sign << np.uint64(dtype.bits - 1) | x << np.uint64(low) | rests & ones(low)
    return words
