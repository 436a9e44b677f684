"""Kinds of relative frames, the core against the reference: in place, and what the encoder chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import tensorwire
from reference.tensorwire_reference import decode
from tests.support.conformance_relative import DTYPES, base_of, step, steps_of
from tests.support.frames import decompress
from tests.support.golden import kind_of

if TYPE_CHECKING:
    from tensorwire.codec import Profile


def decompress_in_place(frame: bytes, base: bytes) -> bytes:
    memory = bytearray(base)
    tensorwire.decompress(frame, base=memory, out=memory, threads=1)
    return bytes(memory)


@pytest.mark.parametrize("profile", ["enec", "fast", "compact"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_decodes_core_frames(dtype: str, profile: Profile) -> None:
    few, all_words, many, most_far = (3000, 0.01, 3), (3000, 1.0, 3), (3000, 0.3, 100), (100, 0.05, 10000)
    expected = {few: {"sparse"}, all_words: {"dense"}, many: {"sparse", "dense"}, most_far: {"sparse", "stored"}}
    for (n, share, largest), kinds in expected.items():
        base = base_of(dtype, n)
        data = step(base, dtype, steps_of(n, f"core {dtype} {share}", share, largest=largest))
        frame = decode(bytes(tensorwire.compress(data, dtype=dtype, base=base, profile=profile)), base)
        assert frame.data == data
        assert {kind_of(coding) for coding in frame.codings} <= kinds


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_word_near_every_exponent(dtype: str) -> None:
    """Each of the 2^16 words as base: steps of one, none and many, and zeros, infinities and NaNs of either sign."""
    words = np.arange(1 << 16, dtype=np.uint16)
    for others in (words + np.uint16(1), words ^ np.uint16(0x8000), words[::-1], np.roll(words, 257), words):
        base, data = words.tobytes(), np.ascontiguousarray(others).tobytes()
        for profile in ("fast", "compact"):
            frame = bytes(tensorwire.compress(data, dtype=dtype, base=base, profile=profile))
            assert decompress(frame, base) == data
            assert decompress_in_place(frame, base) == data
