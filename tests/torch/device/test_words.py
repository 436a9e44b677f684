"""Kernels that decode cascades, on the stand-in: bit for bit what was encoded, in every tier shape and layout."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from reference.tensorwire_reference import Cascade  # noqa: E402
from tests.support.registry import FLOATS, rng  # noqa: E402

from .cascades import ALL_SHAPES, SHAPES, coded, decoded, fits, tables_of  # noqa: E402
from .stand_in import StandIn  # noqa: E402

PAIRS = [(dtype, *shape) for dtype in FLOATS for shape in ALL_SHAPES if fits(dtype, *shape)]
SOME = [pair for k, pair in enumerate(PAIRS) if pair[0] == "BF16" or k % 4 == 0]
SIZES = (1, 2, 31, 255, 256, 257, 1023)
UNCHECKED, CHECKED = StandIn(), StandIn(checked=True, seed=1)


def words_of(dtype: str, count: int, odd: float, name: str, bits: int | None = None, trail: int = 0) -> np.ndarray:
    """Words with exponents around one, and `odd` of them with any; of rests, `bits` above `trail` zeros are random."""
    generator = rng(f"{name} {dtype} {count} {odd} {bits} {trail}")
    word, exponent_bits, mantissa_bits, _ = FLOATS[dtype]
    bits = mantissa_bits + 1 if bits is None else bits
    top = (1 << exponent_bits) - 1
    common = np.maximum(top * 3 // 4 - generator.geometric(0.6, count), 0)
    x = np.where(generator.random(count) < odd, generator.integers(0, top, count, endpoint=True), common)
    rest = generator.integers(0, 1 << bits, count) << trail
    sign, mantissa = rest >> mantissa_bits, rest & ((1 << mantissa_bits) - 1)
    return (sign << (exponent_bits + mantissa_bits) | x << mantissa_bits | mantissa).astype(word)


def check(driver: StandIn, words: list[np.ndarray], dtype: str, kind: Cascade, runs: int, **options: int) -> None:
    blocks = coded(words, dtype, kind, runs, **options)
    tables = tables_of(blocks)
    ways = [{"parts": 3}, {"scratch": True}] if driver.checked else [{}]
    if blocks.launch.widths == (4,) and blocks.launch.whole and dtype in ("BF16", "F16") and not options:
        ways += [{"resident": True}, {"resident": True, "parts": 3}]
    for way in ways:
        for made, expected in zip(decoded(driver, blocks, tables, **way), words, strict=True):
            np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(("dtype", "table", "variant"), PAIRS)
def test_full_runs(dtype: str, table: int, variant: int) -> None:
    """Blocks of several sizes, a launch each, from few escapes to many."""
    kind = Cascade(variant=variant, table=table)
    words = [words_of(dtype, count, odd, "full") for count in (256, 2048, 8192) for odd in (0, 0.02, 0.5)]
    check(UNCHECKED, words, dtype, kind, 32)


@pytest.mark.parametrize(("dtype", "table", "variant"), SOME)
def test_short_runs(dtype: str, table: int, variant: int) -> None:
    kind = Cascade(variant=variant, table=table)
    words = [words_of(dtype, count, odd, "short") for count in SIZES for odd in (0, 0.5)]
    check(UNCHECKED, words, dtype, kind, 4)


@pytest.mark.parametrize(("dtype", "table", "variant"), [pair for k, pair in enumerate(PAIRS) if k % 5 == 0])
def test_accesses_are_inside(dtype: str, table: int, variant: int) -> None:
    """In the checked build, in which order the threads may run; and by all ways: shares of a block, scratch memory."""
    kind = Cascade(variant=variant, table=table)
    check(CHECKED, [words_of(dtype, count, 0.2, "checked") for count in (512, 2048)], dtype, kind, 8)
    check(CHECKED, [words_of(dtype, count, 0.2, "checked") for count in (512, 300, 33)], dtype, kind, 8)
