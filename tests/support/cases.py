"""What the conformance cases are made of: seeded inputs of integers, and frames of the reference encoder."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from reference.tensorwire_reference import Kind, Rest, Trimmed, Verbatim, encode
from tests.support import registry
from tests.support.registry import rng as generator

PROFILES = ("enec", "fast", "compact")
ALL_PROFILES = (*PROFILES, "resident")
# dtype: (bytes of a word, exponent bits, mantissa bits)
FLOATS = {name: (np.dtype(row.word).itemsize, *row[1:3]) for name, row in registry.FLOATS.items()}
# Integers of a byte are split after 4 bits; all others here are not.
SPLIT_INTEGERS = ("I8", "U8")
INTEGERS = {name: np.dtype(word).itemsize for name, word in registry.PLAIN.items()}
OPAQUE = {"F6_E2M3": 6, "LONGEST_NAME_016": 1024}  # not in the page's table: bits per element
RESTS: dict[str, Rest] = {"verbatim": Verbatim(), "trimmed": Trimmed(), "trimmed-run": Trimmed(per_run=True)}


class Case(NamedTuple):
    """One frame. `coding` is (start, end) of the reference's name of the first block's coding.

    `base` is what the frame is relative to, None for a plain frame.
    """

    name: str
    build: Callable[[], bytes]
    data: bytes
    base: bytes | None
    dtype: str
    shape: tuple[int, ...]
    bits: int | None
    profile: str
    coding: tuple[str, str]
    golden: bool


def words_nbytes(dtype: str) -> int:
    return FLOATS[dtype][0] if dtype in FLOATS else INTEGERS.get(dtype, 1)


def exponent_bits(dtype: str) -> int:
    return FLOATS[dtype][1] if dtype in FLOATS else 4 * (dtype in SPLIT_INTEGERS)


def rest_bits(dtype: str) -> int:
    return 8 * words_nbytes(dtype) - exponent_bits(dtype)


def to_bytes(words: np.ndarray, dtype: str) -> bytes:
    return words.astype(f"<u{words_nbytes(dtype)}").tobytes()


def words_of(data: bytes, dtype: str) -> np.ndarray:
    return np.frombuffer(data, f"<u{words_nbytes(dtype)}").astype(np.uint64)


def floats(
    dtype: str, n: int, name: str, *, exponents: np.ndarray | None = None, zero_bits: int = 0, skew: bool = False
) -> bytes:
    """`n` floats. exponents: default a few common, some of all. zero_bits: lowest ones. skew: few bits set."""
    rng = generator(name)
    _, e_bits, m_bits = FLOATS[dtype]
    top = (1 << e_bits) - 1
    if exponents is None:
        common = np.maximum(top * 3 // 4 - rng.geometric(0.75, n), 0)
        exponents = np.where(rng.random(n) < 0.06, rng.integers(0, top, n, endpoint=True), common)
        exponents[n // 2] = top
    mantissas = rng.integers(0, 1 << m_bits, n)
    if skew:
        mantissas &= rng.integers(0, 1 << m_bits, n) & rng.integers(0, 1 << m_bits, n) & rng.integers(0, 1 << m_bits, n)
    signs = rng.integers(0, 2, n)
    words = (signs << (e_bits + m_bits)) | (exponents << m_bits) | (mantissas >> zero_bits << zero_bits)
    return to_bytes(words, dtype)


def integers(dtype: str, n: int, name: str, bits: int, shift: int = 0) -> bytes:
    """`n` words of `bits` random bits, `shift` zeros below them; rare bits are the higher ones."""
    rng = generator(name)
    words = rng.integers(0, 1 << bits, n, dtype=np.uint64)
    rare = rng.random(n) < 0.9
    words[rare] >>= np.uint64(bits // 2)
    return to_bytes(words << np.uint64(shift), dtype)


def small_integers(dtype: str, n: int, name: str, *, mean: float = 0, sigma: float = 9) -> bytes:
    """`n` words of 8 bits around `mean` (I8) or around 128 more (U8), as quantized weights are."""
    rounded = np.rint(generator(name).normal(mean, sigma, n)).astype(np.int64)
    return to_bytes(np.clip(rounded, -128, 127) + 128 * (dtype == "U8") & 255, dtype)


def scatter_zeros(data: bytes, dtype: str, name: str, share: float, *, minus: float = 0, run: int = 1) -> bytes:
    """`data` with a share of its words zero, of which a share is minus zero; `run` words in a row."""
    words = words_of(data, dtype)
    rng = generator(f"{name} zeros")
    zero = np.repeat(rng.random(-(-len(words) // run)) < share, run)[: len(words)]
    zero[len(words) // 3] = True
    signs = (rng.random(len(words)) < minus).astype(np.uint64) << np.uint64(8 * words_nbytes(dtype) - 1)
    return to_bytes(np.where(zero, signs, words), dtype)


def case(
    name: str,
    data: bytes,
    dtype: str,
    *,
    coding: tuple[str, str] = ("", ""),
    shape: tuple[int, ...] | None = None,
    bits: int | None = None,
    profile: str = "compact",
    block_words: int = 2048,
    kind: Kind | Sequence[Kind] | None = None,
    rest: Rest | None = None,
    base: bytes | None = None,
    golden: bool = True,
    **of_frame: Any,
) -> Case:
    """of_frame: further options of `encode`: layout, alignments, padding, extensions."""
    if dtype in OPAQUE:
        bits = OPAQUE[dtype]
    if shape is None:
        shape = (len(data) * 8 // bits if bits else len(data) // words_nbytes(dtype),)
    options = {"bits": bits, "profile": profile, "block_words": block_words, "kind": kind, "rest": rest, "base": base}
    build = partial(encode, data, dtype, shape, **options, **of_frame)
    return Case(name, build, data, base, dtype, shape, bits, profile, coding, golden)
