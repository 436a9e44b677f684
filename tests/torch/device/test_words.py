"""Kernels that decode cascades, on the stand-in: bit for bit what was encoded, in every tier shape and layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorwire  # noqa: E402
from reference.tensorwire_reference import Cascade, Verbatim, encode  # noqa: E402
from tests.support.registry import FLOATS, rng  # noqa: E402

from .cascades import Blocks, blocks_of, coded, decoded, tables_of  # noqa: E402
from .opened import CASCADES, fits  # noqa: E402
from .stand_in import StandIn, missing  # noqa: E402

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
slow = pytest.mark.slow
PAIRS = [(dtype, kind) for dtype in FLOATS for kind in CASCADES if fits(dtype, kind)]


def some(cases: list[tuple], step: int) -> list[Any]:
    """Every `step`-th case, and the first of each dtype and of each variant; the others are slow: to compile a kernel
    takes half a second."""
    seen, chosen = set[Any](), []
    for number, case in enumerate(cases):
        kinds = {case[0], getattr(case[1], "variant", None)}
        is_quick = number % step == 0 or not kinds <= seen
        seen |= kinds
        chosen.append(pytest.param(*case, marks=() if is_quick else slow))
    return chosen


SIZES = (1, 2, 31, 255, 256, 257, 1023)
FAST, RESIDENT = Cascade(variant=3), Cascade(variant=0, table=2)
DAMAGED = [(FAST, "BF16"), (RESIDENT, "BF16"), (Cascade(variant=2, table=2), "F32"), (Cascade(variant=7), "F8_E4M3")]
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


def ways(blocks: Blocks, checked: bool) -> list[dict[str, bool | int]]:
    """How these blocks can be decoded."""
    chosen: list[dict[str, bool | int]] = [{"parts": 3} if checked else {}]
    if checked and blocks.launch.whole:
        chosen.append({"scratch": True})
    if blocks.launch.widths == (4,) and blocks.launch.whole and blocks.dtype in ("BF16", "F16"):
        chosen += [{"resident": True}, {"resident": True, "parts": 3}]
    return chosen


def check(
    driver: StandIn, words: list[np.ndarray], dtype: str, kind: Cascade, runs: int, bits: int | None = None,
    trail: int = 0,
) -> None:  # fmt: skip
    blocks = coded(words, dtype, kind, runs, bits, trail)
    tables = tables_of(blocks)
    for way in ways(blocks, driver.checked) if bits is None else [{}]:
        for made, expected in zip(decoded(driver, blocks, tables, **way), words, strict=True):
            np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(("dtype", "kind"), some(PAIRS, 25))
def test_full_runs(dtype: str, kind: Cascade) -> None:
    """Blocks of several sizes in one launch, from no escapes to many."""
    words = [words_of(dtype, count, odd, "full") for count in (256, 2048, 8192) for odd in (0, 0.02, 0.5)]
    check(UNCHECKED, words, dtype, kind, 32)


@pytest.mark.parametrize(("dtype", "kind"), some(PAIRS, 40))
def test_short_runs(dtype: str, kind: Cascade) -> None:
    words = [words_of(dtype, count, odd, "short") for count in SIZES for odd in (0, 0.5)]
    check(UNCHECKED, words, dtype, kind, 4)


@pytest.mark.parametrize(
    ("dtype", "kind"), [pytest.param(*pair, marks=() if pair[::-1] in DAMAGED else slow) for pair in PAIRS]
)
def test_all_ways_in_the_checked_build(dtype: str, kind: Cascade) -> None:
    """By kernels that damaged streams need too. Threads run in another order; CTAs share a block; later tiers stand in
    scratch memory; escapes in a list."""
    check(CHECKED, [words_of(dtype, count, 0.2, "checked") for count in (512, 2048)], dtype, kind, 8)
    check(CHECKED, [words_of(dtype, count, 0.2, "checked") for count in (512, 300, 33)], dtype, kind, 8)


RESTS = [
    (dtype, bits, trail)
    for dtype in FLOATS
    for bits in range(FLOATS[dtype].mantissa_bits + 2)
    for trail in range(FLOATS[dtype].mantissa_bits + 2 - bits)
]


@pytest.mark.parametrize(("dtype", "bits", "trail"), some(RESTS, 200))
def test_trimmed_rests(dtype: str, bits: int, trail: int) -> None:
    kind = Cascade(variant=1, table=2) if dtype.startswith("F8") else Cascade(variant=0)
    for counts in ((512, 256), (767, 70, 4)):
        words = [words_of(dtype, count, 0.1, "rests", bits, trail) for count in counts]
        check(UNCHECKED, words, dtype, kind, 4, bits, trail)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("kind", [FAST, RESIDENT], ids=["fast", "resident"])
def test_every_pattern_of_16_bits(dtype: str, kind: Cascade) -> None:
    words = rng("patterns").permutation(np.arange(1 << 16, dtype=np.uint16))
    check(UNCHECKED, list(words.reshape(2, -1)), dtype, kind, 128)


@pytest.mark.parametrize("lo", [0, 240, 241])
@pytest.mark.parametrize("odd", [0, 0.3])
def test_names_up_to_the_highest_exponent(lo: int, odd: float) -> None:
    """With lo = 241 the digit of an escape, 15, would make 256."""
    generator = rng(f"highest {lo}")
    x = np.where(generator.random(1024) < odd, generator.integers(0, 256, 1024), lo + generator.integers(0, 15, 1024))
    words = (x << 7 | generator.integers(0, 128, 1024)).astype(np.uint16)
    check(UNCHECKED, [words], "BF16", Cascade(variant=0, lo=lo, table=2), 4)


@pytest.mark.parametrize("below", [(0, 0), (3, 0), (0, 7), (1, 2), (2, 5), (3, 7)])
def test_names_on_both_sides(below: tuple[int, int]) -> None:
    words = [words_of("BF16", 2048, 0.9, f"sides {below}"), np.arange(2048, dtype=np.uint16) << 5]
    check(UNCHECKED, words, "BF16", Cascade(variant=0, lo=120, below=below), 8)


def check_frame(driver: StandIn, frame: bytes, dtype: str, words: np.ndarray) -> int:
    """Decode the cascades of a frame by all ways; how many there are."""
    blocks_words = blocks_of(frame, dtype)
    for blocks in blocks_words:
        tables, size = tables_of(blocks), blocks.runs_per_block * 256
        for way in ways(blocks, driver.checked):
            for row, made in zip(blocks.rows, decoded(driver, blocks, tables, **way), strict=True):
                begin = row[1] * size
                np.testing.assert_array_equal(made, words[begin : begin + row[2]])
    return sum(len(blocks.rows) for blocks in blocks_words)


@pytest.mark.parametrize(
    ("dtype", "profile"),
    [("BF16", "fast"), ("BF16", "resident"), pytest.param("F16", "fast", marks=slow), ("F16", "resident")],
)
def test_frames_of_the_core(dtype: str, profile: str) -> None:
    """Full blocks, and a short one at the end."""
    words = np.concatenate([words_of(dtype, 40_000, 0.01, "frames"), words_of(dtype, 30_001, 0.2, "frames")])
    frame = bytes(tensorwire.compress(words.tobytes(), dtype=dtype, profile=profile))
    assert check_frame(UNCHECKED, frame, dtype, words) >= 2


def random_frame(name: str, dtype: str) -> tuple[bytes, str, np.ndarray]:
    generator = rng(name)
    count = int(generator.integers(200, 5000))
    words = words_of(dtype, count, float(generator.random()) ** 3 * 0.5, name)
    if generator.random() < 0.5:  # exponents of another place and width
        shift, scale = int(generator.integers(0, 20)), int(generator.integers(1, 4))
        mantissa_bits, top = FLOATS[dtype].mantissa_bits, (1 << FLOATS[dtype].exponent_bits) - 1
        x = words >> mantissa_bits & top
        moved = ((x.astype(np.int64) * scale + shift) & top).astype(words.dtype)
        words = (words & ~words.dtype.type(top << mantissa_bits)) | moved << mantissa_bits
    profile, block_words = str(generator.choice(["fast", "resident"])), int(generator.choice([0, 256, 512, 1280]))
    if not block_words:  # as the core chooses
        return bytes(tensorwire.compress(words.tobytes(), dtype=dtype, profile=profile)), dtype, words
    table = 2 if profile == "resident" else int(generator.integers(1, 3))
    options = {"kind": Cascade(table=table), "rest": Verbatim(), "profile": profile, "block_words": block_words}
    return encode(words.tobytes(), dtype, words.shape, **options), dtype, words


def test_random_frames() -> None:
    assert sum(check_frame(UNCHECKED, *random_frame(f"random {k}", "BF16")) for k in range(20)) > 30


@slow
@pytest.mark.parametrize("first", range(0, 2000, 200))
@pytest.mark.parametrize("dtype", FLOATS)
def test_many_random_frames(dtype: str, first: int) -> None:
    numbers = range(first, first + 200)
    assert sum(check_frame(UNCHECKED, *random_frame(f"many {k}", dtype)) for k in numbers) > 200


def check_damaged(kind: Cascade, dtype: str, number: int) -> None:
    """Streams that are damaged after the tables were made: other words, and no access outside of the buffers."""
    generator = rng(f"damaged {kind} {number}")
    counts = (512, 1024) if number % 2 else (512, 300, 7)
    blocks = coded([words_of(dtype, count, 0.2, f"damaged {number % 8}") for count in counts], dtype, kind, 4)
    tables, damaged = tables_of(blocks), np.frombuffer(blocks.frame, np.uint8).copy()
    if number % 3 == 0:
        damaged[:] = 255
    elif number % 3 == 1:
        damaged[:] = generator.integers(0, 256, len(damaged))
    else:
        begin = int(generator.integers(0, len(damaged)))
        damaged[begin : begin + 64] = generator.integers(0, 256, len(damaged[begin : begin + 64]))
    for way in ways(blocks, checked=True):
        decoded(CHECKED, blocks, tables, frame=damaged.tobytes(), **way)


@pytest.mark.parametrize(("kind", "dtype"), DAMAGED)
def test_damaged_streams(kind: Cascade, dtype: str) -> None:
    for number in range(6):
        check_damaged(kind, dtype, number)


@slow
@pytest.mark.parametrize(("kind", "dtype"), DAMAGED)
def test_many_damaged_streams(kind: Cascade, dtype: str) -> None:
    for number in range(250):
        check_damaged(kind, dtype, number)
