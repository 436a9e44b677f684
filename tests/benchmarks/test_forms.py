"""Weights in other forms are what their names say, within the rounding of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.codecs import forms

WEIGHTS = np.random.default_rng(3).standard_normal((16, 2 * forms.GROUP), dtype=np.float32)


def nibbles(packed: Any, axis: int) -> Any:
    """The eight numbers of each I32, side by side along `axis`, by shifts of Python's own."""
    parts = [[(int(word) >> shift) & 15 for shift in range(0, 32, 4)] for word in packed.reshape(-1)]
    whole = np.array(parts, np.float32).reshape(*packed.shape, 8)
    return np.moveaxis(whole, 2, axis + 1).reshape(
        *(size * (8 if i == axis else 1) for i, size in enumerate(packed.shape))
    )


def test_int8_is_within_half_a_step() -> None:
    numbers, scales = forms.int8(WEIGHTS)
    assert (numbers.dtype, scales.dtype) == (np.int8, np.float16)
    assert np.abs(numbers * scales - WEIGHTS).max() < 0.6 * scales.max()


def test_int4_is_within_a_step() -> None:
    qweight, scales, qzeros = forms.int4(WEIGHTS)
    assert (qweight.shape, scales.shape, qzeros.shape) == ((32, 16), (2, 16), (2, 2))
    numbers, zeros = nibbles(qweight, 0), nibbles(qzeros, 1)
    rows = np.repeat(scales.astype(np.float32), forms.GROUP, axis=0)
    back = (numbers - np.repeat(zeros, forms.GROUP, axis=0)) * rows
    assert np.abs(back.T - WEIGHTS).max() < 1.1 * scales.max()


def test_two_of_four_keeps_the_larger_half() -> None:
    (pruned,) = forms.two_of_four(WEIGHTS)
    fours, before = pruned.astype(np.float32).reshape(-1, 4), WEIGHTS.reshape(-1, 4)
    assert ((fours != 0).sum(axis=1) == 2).all()
    np.testing.assert_allclose(np.abs(fours).max(axis=1), np.abs(before).max(axis=1), rtol=1 / 128)


def test_a_ratio_counts_all_tensors_of_a_form() -> None:
    row = forms.measure("2:4", [WEIGHTS])
    assert row["form"] == "2:4"
    assert 2 < row["fast"] <= row["compact"] < 3
