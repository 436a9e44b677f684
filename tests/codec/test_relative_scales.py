"""F8 weights with a scale for each block of 64 by 64, which changes against the base: all words of a block move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import tensorwire
from reference.tensorwire_reference import decode

if TYPE_CHECKING:
    from tensorwire.codec import Profile

TYPES = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
MANTISSA_BITS = {"F8_E4M3": 3, "F8_E5M2": 2}
PROFILES: tuple[Profile, ...] = ("fast", "compact", "enec")
ROWS, COLUMNS, SIDE = 512, 256, 64


def masters() -> Any:
    return np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32) * np.float32(0.02)


def largest(weights: Any) -> Any:
    """The largest weight of each block, as an array that goes with the weights."""
    blocks = np.abs(weights).reshape(ROWS // SIDE, SIDE, COLUMNS // SIDE, SIDE).max(axis=(1, 3))
    return np.kron(blocks, np.ones((SIDE, SIDE), np.float32))


def quantized(weights: Any, scales: Any, dtype: str) -> Any:
    limit = np.float32(ml_dtypes.finfo(TYPES[dtype]).max)
    return np.clip(weights / scales * limit, -limit, limit).astype(TYPES[dtype])


def check(new: Any, old: Any, profile: Profile) -> int:
    """The frame decodes in every way, with the reference too; its size."""
    frame = tensorwire.compress(new, base=old, profile=profile)
    expected = new.tobytes()
    assert tensorwire.decompress(frame, base=old, framework="bytes") == expected
    assert decode(frame, old.tobytes()).data == expected
    memory = old.copy()
    tensorwire.decompress(frame, base=memory, out=memory)
    assert memory.tobytes() == expected
    return len(frame)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", TYPES)
def test_the_largest_weight_of_some_blocks_grows(dtype: str, profile: Profile) -> None:
    """A step of training: most weights keep their word, but in every fourth row of blocks the scale grows by a tenth,
    and with it nearly all words change."""
    before = masters()
    after = before * np.float32(1.0001)
    after[: 4 * SIDE : 2 * SIDE, ::SIDE] = 1.1 * largest(before)[: 4 * SIDE : 2 * SIDE, ::SIDE]
    old, new = (quantized(weights, largest(weights), dtype) for weights in (before, after))
    changed = (old.view(np.uint8) != new.view(np.uint8)).reshape(ROWS // SIDE, -1).mean(axis=1)
    assert (changed[[0, 2]] > 0.3).all()
    assert (changed[[1, 3, 4, 5, 6, 7]] < 0.001).all()
    assert check(new, old, profile) < 0.5 * len(tensorwire.compress(new, profile=profile))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_scale_doubles(dtype: str, profile: Profile) -> None:
    """Each weight that is no subnormal is one exponent lower: the step is as many words as the mantissa tells apart.
    For such a step kind dense takes a sign and two low bits at most, of words that take more than six bits else."""
    weights, scales = masters(), largest(masters())
    old, new = quantized(weights, scales, dtype), quantized(weights, 2 * scales, dtype)
    steps = np.abs(old.view(np.uint8).astype(int) - new.view(np.uint8).astype(int))
    assert (steps == 1 << MANTISSA_BITS[dtype]).mean() > 0.9
    nbytes = check(new, old, profile)
    plain = len(tensorwire.compress(new, profile=profile))
    assert nbytes <= 1.001 * plain
    if profile != "enec":
        assert nbytes < 0.7 * plain


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_that_have_nothing_in_common(dtype: str) -> None:
    """A base that does not help: at most a thousandth larger than the plain frame."""
    old, new = (quantized(weights, largest(weights), dtype) for weights in (masters()[::-1, ::-1], masters()))
    for profile in PROFILES:
        assert check(new, old, profile) <= 1.001 * len(tensorwire.compress(new, profile=profile))
