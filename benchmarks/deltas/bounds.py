"""What a pair needs at least, if each word is coded by itself and the decoder knows the base."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.data import entropy

if TYPE_CHECKING:
    from collections.abc import Iterable

EXPONENTS = 256


def bound_bits(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """The entropy of positions and of steps, given the tensor and the exponent of the base, in bits.

    Args:
        pairs: (old, new) BF16 words of each tensor as uint16.
    """
    return sum(map(_tensor_bits, *zip(*pairs, strict=True)))


def changes_by_exponent(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[tuple[int, int, int]]:
    """(exponent of the base, words with it, how many of them change), of all tensors together."""
    words, changed = np.zeros((2, EXPONENTS), np.int64)
    for old, new in pairs:
        exponents = old.reshape(-1) >> 7 & 0xFF
        words += np.bincount(exponents, minlength=EXPONENTS)
        changed += np.bincount(exponents[(old != new).reshape(-1)], minlength=EXPONENTS)
    return [(int(each), int(words[each]), int(changed[each])) for each in np.flatnonzero(words)]


def ordered(words: np.ndarray) -> np.ndarray:
    """The order-preserving map of BF16 words to integers: a larger float has a larger integer."""
    return words ^ np.where(words & 0x8000, np.uint16(0xFFFF), np.uint16(0x8000))


def _tensor_bits(old: np.ndarray, new: np.ndarray) -> float:
    exponents = (old.reshape(-1) >> 7 & 0xFF).astype(np.int64)
    # Differences of the order-preserving map, modulo 2^16: a step of 0 is a word that stays.
    steps = (ordered(new) - ordered(old)).reshape(-1).astype(np.int64)
    # H(step | exponent) = H(step, exponent) - H(exponent): whether a word changes is part of its step.
    together = np.unique(exponents << 16 | steps, return_counts=True)[1]
    return entropy(together) - entropy(np.bincount(exponents, minlength=EXPONENTS))
