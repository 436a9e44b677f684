"""All 2^32 pairs of 16-bit words, each once as a word of the base and one of the content, through the public calls."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import tensorwire

Words = npt.NDArray[np.uint16]
TOP = np.uint16(0x8000)
PARTS = 16
STEPS_AT_ONCE = 64
"""Blocks of 2^18 words have all words four times, each time another step away."""


def ordinals(words: Words) -> Words:
    return np.where(words & TOP, ~words, words ^ TOP)


def words_of(numbers: Words) -> Words:
    return np.where(numbers & TOP, numbers ^ TOP, ~numbers)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_pair_of_words(dtype: str, part: int) -> None:
    words = np.random.default_rng(0).permutation(np.arange(1 << 16, dtype=np.uint16))
    numbers = ordinals(words)
    assert (words_of(numbers) == words).all()
    base = np.tile(words, STEPS_AT_ONCE)
    of_number = words_of(np.arange(1 << 16, dtype=np.uint16))
    # Each step of a dtype is taken once. So every pair is met: a word, and the word that lies so many steps from it.
    share = (1 << 16) // PARTS
    for first in range(part * share, (part + 1) * share, STEPS_AT_ONCE):
        steps = np.arange(first, first + STEPS_AT_ONCE, dtype=np.uint16)
        content = of_number[(numbers[None, :] + steps[:, None]).reshape(-1)]
        frame = tensorwire.compress(content, dtype=dtype, base=base, profile="compact")
        result = tensorwire.decompress(frame, base=base, verify=False)
        assert np.array_equal(np.asarray(result).view(np.uint16), content)
        # Steps of neighbours take few bits, so that these are blocks of kind dense: the base matters.
        assert len(frame) < 0.97 * content.nbytes
