"""Kind scaled as the encoder chooses it: found where words are products, by whatever shares a scale, and only there."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from benchmarks.codecs.dequantized import FORMS, multiplied
from reference.tensorwire_reference import decode
from tensorwire.codec import compress, decompress

ROWS, COLUMNS = 260, 384  # blocks begin amid tiles of 128 rows


def weights(rows: int = ROWS, columns: int = COLUMNS, seed: int = 11) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)


def codings(words: Any, profile: Any = "compact", **options: Any) -> tuple[str, ...]:
    frame = compress(words, dtype="BF16", profile=profile, **options)
    base = options.get("base")
    decoded = decode(bytes(frame), None if base is None else base.tobytes())
    assert decoded.data == words.tobytes()
    assert bytes(decompress(frame, framework="bytes", base=base)) == words.tobytes()
    return decoded.codings


@pytest.mark.parametrize("form", FORMS)
def test_products_are_found(form: str) -> None:
    words = multiplied(*FORMS[form].quantize(weights()))
    found = codings(words)
    assert all("scaled/" in coding for coding in found)
    assert words.nbytes > 2 * len(compress(words, dtype="BF16", profile="compact"))


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("columns", [127, 128, 1024])
@pytest.mark.parametrize("form", FORMS)
def test_every_shape_comes_back(form: str, rows: int, columns: int) -> None:
    codings(multiplied(*FORMS[form].quantize(weights(rows, columns))))


@pytest.mark.parametrize("scale", [2.0**-112, 2.0**-111, 2.0**113, 2.0**119 / 3])
@pytest.mark.parametrize("form", FORMS)
def test_scales_of_any_size_come_back(form: str, scale: float) -> None:
    codes, scales = FORMS[form].quantize(weights(20))
    codings(multiplied(codes, (scales * np.float32(scale / scales.max())).astype(np.float32)))


def test_only_words_of_compact_are_looked_at() -> None:
    words = multiplied(*FORMS["int8, one scale"].quantize(weights()))
    for profile in ("enec", "fast", "resident"):
        assert not any("scaled" in coding for coding in codings(words, profile))


@pytest.mark.parametrize("form", FORMS)
def test_one_word_that_is_no_product_ends_it(form: str) -> None:
    words = multiplied(*FORMS[form].quantize(weights(64)))
    words[50, 100] ^= 1
    assert not any("num_scales=1," in coding for coding in codings(words))


def test_ordinary_words_are_coded_as_before() -> None:
    words = weights().astype(ml_dtypes.bfloat16).view(np.uint16)
    assert not any("scaled" in coding for coding in codings(words))


def test_minus_zero_is_no_code_of_int8() -> None:
    words = multiplied(*FORMS["int8, one scale"].quantize(weights(64)))
    words[words == 0] = 0x8000
    assert (words == 0x8000).any()
    assert not any("scaled/1" in coding for coding in codings(words))


def test_sparse_products_take_the_smaller_kind() -> None:
    words = multiplied(*FORMS["int8, one scale"].quantize(weights(64)))
    words[np.random.default_rng(1).random(words.shape) < 0.99] = 0
    assert all(coding.startswith("zeros") for coding in codings(words))


def test_a_version_that_was_quantized_anew_is_no_delta() -> None:
    old, new = (multiplied(*FORMS["int8, one scale"].quantize(weights(seed=seed))) for seed in (1, 2))
    assert all("scaled" in coding for coding in codings(new, base=old))
