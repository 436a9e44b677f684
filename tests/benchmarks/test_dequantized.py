"""Codes and scales are found again from BF16 words alone, and give the same words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.clock import compiled
from benchmarks.codecs import dequantized
from benchmarks.codecs.dequantized import FORMS, find, multiplied, search

WEIGHTS = np.random.default_rng(5).standard_normal((150, 256), dtype=np.float32)


@pytest.mark.parametrize("form", FORMS)
def test_codes_and_scales_are_found(form: str) -> None:
    words = multiplied(*FORMS[form].quantize(WEIGHTS))
    found = search(words, FORMS[form], "fast")
    columns = WEIGHTS.shape[1] // found.scales.shape[1]
    assert (multiplied(found.codes, np.repeat(found.scales, columns, axis=1)) == words).all()
    # Blocks have 128 rows, so that each begins a row of tiles.
    assert found.num_scales == {"F8_E4M3, a scale for 128 x 128": 4, "int8, one scale": 2}.get(form, 150)


@pytest.mark.parametrize("form", FORMS)
def test_ordinary_weights_have_none(form: str) -> None:
    words = multiplied(WEIGHTS[:128, :128], np.float32(0.02))
    assert find(words, FORMS[form].codes) is None


def test_codes_that_are_not_the_nearest() -> None:
    """BF16 rounds 127 of these scales to 126.5 and less."""
    codes = np.arange(1, 128, dtype=np.float32)
    for scale in np.linspace(1 / 127, 2 / 127, 300, dtype=np.float32):
        words = multiplied(codes, scale)
        found, numbers = find(words, codes) or pytest.fail(f"expected a scale like {scale}")
        assert (multiplied(numbers, found) == words).all()


def test_words_that_are_zero_have_any_scale() -> None:
    zeros = np.array([[0, 0x8000]], np.uint16)
    scale, codes = find(zeros, FORMS["int8, one scale"].codes) or pytest.fail("expected a scale")
    assert scale == 1
    assert not codes.any()


@pytest.mark.parametrize("profile", dequantized.PROFILES)
@pytest.mark.parametrize("form", FORMS)
def test_both_ways_are_measured(form: str, profile: str, tmp_path: Path) -> None:
    source = Path(dequantized.__file__).with_name("dequantized.c")
    row = dequantized.measure([WEIGHTS], FORMS[form], profile, compiled(source, tmp_path, "-O1"), rounds=1)  # type: ignore[arg-type]
    assert row["today"] < 2 < row["codes"]
    assert min(row["today decompress"], row["codes decompress"]) > 0
