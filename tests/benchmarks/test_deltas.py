"""Pairs of checkpoints: the synthetic ones follow the law, and what is measured on them is right."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from benchmarks.deltas.bounds import bound_bits, ordered
from benchmarks.deltas.synthetic import synthetic_pair, to_bf16

# Shares of changed words in trained pairs: benchmarks.deltas.training prints them.
TRAINED = {1e-6: 0.0045, 5e-6: 0.0180, 2e-5: 0.0558}


def test_rounding_is_that_of_bf16() -> None:
    values = np.random.default_rng(1).standard_normal(1 << 16, np.float32)
    values[:4] = np.array([0x3F80_8000, 0x3F81_8000, 0x8000_0000, 0x0000_8001], np.uint32).view(np.float32)
    assert np.array_equal(to_bf16(values), values.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize("rate", TRAINED)
def test_synthetic_pairs_change_as_often_as_trained_ones(rate: float) -> None:
    old, new = synthetic_pair(1 << 20, rate)
    assert np.mean(old != new) == pytest.approx(TRAINED[rate], rel=0.1)


def test_the_probability_of_a_change_halves_with_each_exponent() -> None:
    old, new = synthetic_pair(1 << 20, 5e-6)
    exponents, changed = old >> 7 & 0xFF, old != new
    shares = [changed[exponents == exponent].mean() for exponent in range(117, 123)]
    for above, below in zip(shares[1:], shares, strict=False):
        assert 0.4 < above / below < 0.6


def test_synthetic_pairs_are_deterministic() -> None:
    first, second, other = synthetic_pair(1000, 1e-3), synthetic_pair(1000, 1e-3), synthetic_pair(1000, 1e-3, seed=1)
    assert all(map(np.array_equal, first, second))
    assert not np.array_equal(first[0], other[0])


def test_the_map_keeps_the_order_of_floats() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    floats = words.view(ml_dtypes.bfloat16).astype(np.float32)
    # Minus zero stands below plus zero.
    order = np.lexsort((words >> 15 == 0, floats))
    assert np.all(np.diff(ordered(words)[order[~np.isnan(floats[order])]].astype(int)) > 0)


def test_the_bound_of_a_small_pair_by_hand() -> None:
    # Four words of one exponent, of which one goes up by 1: H(1/4) each. Two of another, one up and one down: 1 each.
    old = np.array([0x3F80] * 4 + [0x4080] * 2, np.uint16)
    new = np.array([0x3F80] * 3 + [0x3F81, 0x4081, 0x407F], np.uint16)
    expected = 4 * (2 * 0.25 + math.log2(4 / 3) * 0.75) + 2
    assert bound_bits([(old, new)]) == pytest.approx(expected)
    assert bound_bits([(old, new), (old, old)]) == pytest.approx(expected)
