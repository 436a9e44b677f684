"""What `diff --stats` counts: the steps of a class, and what it keeps of them."""

from __future__ import annotations

from functools import partial
from math import log2
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tensorwire.checkpoint.operations.delta_stats import DeltaCounter, _rounded

if TYPE_CHECKING:
    from tensorwire.checkpoint.differences import DeltaStats


def read(words: np.ndarray, start: int, out: memoryview) -> None:
    out[:] = words.tobytes()[start : start + len(out)]


def stats_of(dtype: str, old: np.ndarray, new: np.ndarray) -> DeltaStats:
    counter = DeltaCounter(1)
    counter.add(dtype, new.shape, new.nbytes, partial(read, new), partial(read, old))
    return counter.stats()


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_steps_as_they_are_counted(bits: int) -> None:
    """Below 256 as they are; above, the highest bit and the sign. The smallest step has no positive of its size."""
    limit = 1 << (bits - 1)
    table = {0: 0, 1: 1, -3: -3, 255: 255, -255: -255, 256: 256, 300: 256, -511: -256, 512: 512, -(2**40) - 1: -(2**40)}
    table |= {limit - 1: max(limit // 2, 127) if bits > 8 else 127, -limit: -limit}
    steps = [step for step in table if -limit <= step < limit]
    assert _rounded(np.array(steps, f"i{bits // 8}")).tolist() == [table[step] for step in steps]


def test_the_entropy_of_steps() -> None:
    """Small steps and large ones, worked out by hand."""
    old = np.zeros(4000, np.uint32)
    small, large = np.array([1, 2, 3, 3]), np.array([2**16, 2**16 + 1, 2**16 + 7, 2**17 - 1])
    (words,) = stats_of("U32", old, np.tile(small, 1000).astype(np.uint32)).words
    assert words.step_bits == 1.5
    (words,) = stats_of("U32", old, np.tile(large, 1000).astype(np.uint32)).words
    assert words.step_bits == 16
    (words,) = stats_of("U32", old, np.tile([2, 2**20], 2000).astype(np.uint32)).words
    assert words.step_bits == 1 + 20 / 2


def test_any_number_of_different_steps_takes_little_memory() -> None:
    words = np.random.default_rng(5).integers(0, 2**32, 200_000, np.uint32)
    counter = DeltaCounter(1)
    counter.add("U32", words.shape, words.nbytes, partial(read, words), partial(read, np.zeros_like(words)))
    assert len(counter._steps["U32", None]) <= 2 * (256 + 24)
    assert counter.stats().words[0].step_bits == pytest.approx(log2(2**32), rel=1e-3)


def test_windows_that_end_within_a_block() -> None:
    """A block holds whole rows, and no number of rows of 384 words fills a window."""
    old = np.random.default_rng(6).normal(0, 0.02, (24_000, 384)).astype(np.float32).view(np.uint32) >> 16
    old = old.astype(np.uint16)
    new = old.copy()
    new[::100, 7] += 1
    (found,) = stats_of("BF16", old, new).dtypes
    assert (found.num_words, found.num_changed) == (old.size, 240)
