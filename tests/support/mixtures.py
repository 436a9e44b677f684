"""Tensors whose stretches have nothing in common, and bases of which each stretch changed in a way of its own.

Blocks have tables of their own. So what a frame takes depends on where stretches begin and end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.support import registry
from tests.support.registry import FLOATS

CONTENTS = ("weights", "coarse", "drifting", "moments", "pruned", "sparse", "constant", "random", "integers", "zeros")
CHANGES = ("none", "few", "half", "all", "clustered", "rows", "relative", "scaled", "unrelated")


class Stretch(NamedTuple):
    """
    Attributes:
        content, change: one of CONTENTS, and one of CHANGES.
        count: words, at least one.
        scale: logarithm of that of the values.
        rate: logarithm of the share of words that change, or of the size of the steps.
    """

    content: str
    change: str
    count: int
    scale: float = 0.0
    rate: float = -3.0


def words_of(dtype: str, stretches: list[Stretch], seed: int) -> np.ndarray:
    """The words of all stretches."""
    generator = np.random.default_rng(seed)
    with np.errstate(all="ignore"):  # values may overflow
        return np.concatenate([_content(dtype, stretch, generator) for stretch in stretches])


def changed(dtype: str, words: np.ndarray, stretches: list[Stretch], seed: int) -> np.ndarray:
    """The words after the change of each stretch."""
    generator, start, result = np.random.default_rng(seed + 1), 0, []
    for stretch in stretches:
        with np.errstate(all="ignore"):
            result.append(_changed(dtype, stretch, words[start : start + stretch.count], generator))
        start += stretch.count
    return np.concatenate(result)


def _of_values(dtype: str, values: np.ndarray) -> np.ndarray:
    if dtype in FLOATS:
        target = FLOATS[dtype]
        return values.astype(np.float32).astype(target.numpy).view(target.word)
    if dtype == "F64":
        return values.astype(np.float64).view(np.uint64)
    return np.rint(np.clip(100 * values, -(2.0**62), 2.0**62)).astype(np.int64).astype(registry.word_type(dtype))


def _values(dtype: str, words: np.ndarray) -> np.ndarray:
    if dtype in FLOATS or dtype == "F64":
        numpy_dtype = FLOATS[dtype].numpy if dtype in FLOATS else np.dtype(np.float64)
        return np.nan_to_num(words.view(numpy_dtype).astype(np.float64), posinf=0, neginf=0)
    return words.astype(np.float64) / 100


def _content(dtype: str, stretch: Stretch, generator: np.random.Generator) -> np.ndarray:
    word, count = registry.word_type(dtype), stretch.count
    random = generator.integers(0, np.iinfo(word).max, count, dtype=word, endpoint=True)
    values = generator.standard_normal(count) * np.exp(stretch.scale)
    match stretch.content:
        case "random":
            return random
        case "constant":
            return np.full(count, random[0])
        case "zeros":
            return np.zeros(count, word)
        case "integers":
            return random % word(1 + int(np.exp(stretch.scale + 4)) % 100)
        case "sparse":
            return np.where(generator.random(count) < np.exp(stretch.rate), _of_values(dtype, values), word(0))
        case "pruned":
            return np.where(np.arange(count) // 64 % 2 == 0, _of_values(dtype, values), word(0))
        case "coarse":
            return _of_values(dtype, values) & ~word((1 << (4 * word().itemsize - 1)) - 1)
        case "drifting":
            return _of_values(dtype, values * np.exp(np.linspace(-6, 6, count)))
        case "moments":
            return _of_values(dtype, np.exp(4 * values))
    return _of_values(dtype, values)


def _changed(dtype: str, stretch: Stretch, words: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    word, count, rate = registry.word_type(dtype), stretch.count, np.exp(stretch.rate)
    steps = generator.integers(1, 5, count).astype(word)
    places = np.arange(count)
    match stretch.change:
        case "none":
            return words
        case "few":
            steps[generator.random(count) >= rate] = 0
        case "half":
            steps[generator.random(count) < 0.5] = 0
        case "clustered":
            steps[generator.random(count // 8192 + 1).repeat(8192)[:count] >= 0.2] = 0
        case "rows":
            steps[places // 384 % 10 != 3] = 0
        case "relative":
            return _of_values(dtype, _values(dtype, words) * (1 + 1e-2 * rate * generator.standard_normal(count)))
        case "scaled":
            return _of_values(dtype, _values(dtype, words) + rate * generator.standard_normal(count))
        case "unrelated":
            return generator.permutation(words)
    return words + steps
