"""One registry of dtypes, inputs and profiles, from which the tests generate their cases.

Inputs are bytes: losslessness is a matter of bits, so nothing here or in the tests compares float values.
"""

from __future__ import annotations

import functools
import zlib
from typing import TYPE_CHECKING, NamedTuple

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

PROFILES = ("enec", "fast", "compact", "resident")
CPU_TARGETS = ("scalar", "avx2", "avx512", "neon")


class Float(NamedTuple):
    word: type[np.unsignedinteger]
    exponent_bits: int
    mantissa_bits: int
    numpy: np.dtype


FLOATS = {
    "BF16": Float(np.uint16, 8, 7, np.dtype(ml_dtypes.bfloat16)),
    "F16": Float(np.uint16, 5, 10, np.dtype(np.float16)),
    "F32": Float(np.uint32, 8, 23, np.dtype(np.float32)),
    "F8_E4M3": Float(np.uint8, 4, 3, np.dtype(ml_dtypes.float8_e4m3fn)),
    "F8_E5M2": Float(np.uint8, 5, 2, np.dtype(ml_dtypes.float8_e5m2)),
}
# dtype: word. All other dtypes whose words the format knows.
PLAIN = {
    "F64": np.uint64,
    "I64": np.uint64,
    "U64": np.uint64,
    "I32": np.uint32,
    "U32": np.uint32,
    "I16": np.uint16,
    "U16": np.uint16,
    "I8": np.uint8,
    "U8": np.uint8,
    "BOOL": np.uint8,
}
# dtype: (bits per element, elements that make whole bytes). Opaque to the format.
OPAQUE = {"C64": (64, 1), "F8_E8M0": (8, 1), "F4": (4, 2), "F6_E2M3": (6, 4), "MXINT_12": (12, 2)}
DTYPES = (*FLOATS, *PLAIN, *OPAQUE)


class Input(NamedTuple):
    """The content of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __str__(self) -> str:
        return f"{self.dtype}-{self.name}"


def rng(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def word_type(dtype: str) -> type[np.unsignedinteger]:
    return FLOATS[dtype].word if dtype in FLOATS else PLAIN.get(dtype, np.uint8)


def weights(dtype: str, count: int, name: str = "weights") -> np.ndarray:
    """Words of `count` elements that look like those of a trained layer: rows of different scales."""
    generator = rng(f"{name} {dtype} {count}")
    scales = np.exp(generator.normal(-4, 0.5, size=-(-count // 64))).repeat(64)[:count]
    values = (generator.normal(size=count) * scales).astype(np.float32)
    if dtype in FLOATS:
        return values.astype(FLOATS[dtype].numpy).view(FLOATS[dtype].word)
    if dtype == "F64":
        return values.astype(np.float64).view(np.uint64)
    if dtype == "BOOL":
        return (values > 0).view(np.uint8)
    return (values * 1000).astype(np.int64).astype(word_type(dtype))


def random_words(dtype: str, count: int) -> np.ndarray:
    word = word_type(dtype)
    return rng(f"random {dtype} {count}").integers(0, np.iinfo(word).max, count, dtype=word, endpoint=True)


def every_pattern(dtype: str) -> np.ndarray:
    """Every pattern of the highest 16 bits of a word, each with other low bits."""
    word = word_type(dtype)
    bits = 8 * np.dtype(word).itemsize
    top = np.arange(1 << min(bits, 16), dtype=np.uint64)
    low = rng(f"low {dtype}").integers(0, 1 << max(bits - 16, 0), len(top), dtype=np.uint64)
    return (top << np.uint64(max(bits - 16, 0)) | low).astype(word)


def _of_values(dtype: str, values: np.ndarray) -> np.ndarray:
    return values.astype(FLOATS[dtype].numpy).view(FLOATS[dtype].word)


def _least_normal(dtype: str) -> float:
    return float(ml_dtypes.finfo(FLOATS[dtype].numpy).smallest_normal)


def _float_words(dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    word, exponent_bits, mantissa_bits, _ = FLOATS[dtype]
    generator = rng(f"floats {dtype}")
    one = word(1)
    sign = word(1 << (exponent_bits + mantissa_bits))
    top_exponent = word(((1 << exponent_bits) - 1) << mantissa_bits)
    mantissas = generator.integers(0, 1 << mantissa_bits, 700).astype(word)
    signs = generator.integers(0, 2, 700).astype(word) * sign

    yield "nan-payloads", top_exponent | mantissas | signs
    yield "infinities", top_exponent | signs
    yield "signed-zeros", signs
    yield "subnormals", mantissas | signs
    yield "one-subnormal", np.concatenate([np.zeros(600, word), [one]]).astype(word)
    outliers = np.concatenate([weights(dtype, 256, "calm")] * 24)
    outliers[:: len(outliers) // 6] = top_exponent | one
    yield "outliers", outliers
    wide = (generator.integers(0, 1 << exponent_bits, 3000).astype(word) << word(mantissa_bits)) | signs[0]
    yield "all-exponents", wide
    low_exponent = (np.arange(2000) % 3).astype(word) << word(mantissa_bits)
    yield "three-exponents", low_exponent | generator.integers(0, 1 << mantissa_bits, 2000).astype(word)
    pruned = weights(dtype, 6000, "pruned")
    pruned[generator.random(6000) < 0.9] = 0
    yield "pruned", pruned
    pruned = weights(dtype, 20000, "pruned by a mask")
    pruned[generator.random(20000) < 0.5] &= sign
    yield "pruned-half-of-it-minus", pruned
    yield "second-moments", _of_values(dtype, np.exp(4 * generator.normal(size=20000)) * 1e-3)
    yield "subnormals-and-few-others", _of_values(dtype, generator.normal(size=20000) * _least_normal(dtype) / 2)
    parts = [weights(dtype, 900 * i + 7, f"part {i}") for i in range(1, 6)]
    yield "tensors-of-all-sorts", np.concatenate([*parts, np.full(500, one << word(mantissa_bits)), parts[0] & sign])
    blocks = weights(dtype, 8192, "block pruned").reshape(-1, 64).copy()
    blocks[generator.random(len(blocks)) < 0.5] = 0
    yield "pruned-in-groups", blocks.ravel()
    for kept in range(0, mantissa_bits, 3):
        mask = ~word((1 << (mantissa_bits - kept)) - 1)
        yield f"{kept}-mantissa-bits", weights(dtype, 2100, f"kept {kept}") & mask
    mixed = weights(dtype, 4096, "mixed")
    mixed[1024:2048] &= ~word((1 << (mantissa_bits // 2)) - 1)
    mixed[2048:3000] &= ~word((1 << mantissa_bits) - 1)
    yield "mixed-trailing-zeros", mixed


def _casts(dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    narrower = {"F32": ("BF16", "F16", "F8_E4M3"), "F16": ("F8_E4M3", "F8_E5M2"), "BF16": ("F8_E4M3",), "F64": ("F32",)}
    for source in narrower.get(dtype, ()):
        values = weights(source, 3000, "cast").view(FLOATS[source].numpy)
        target = FLOATS[dtype].numpy if dtype in FLOATS else np.dtype(np.float64)
        yield f"cast-from-{source.lower()}", values.astype(target).view(word_type(dtype))


def _contents(dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    word = word_type(dtype)
    yield "weights", weights(dtype, 5000)
    yield "random", random_words(dtype, 3000)
    yield "zeros", np.zeros(5000, word)
    yield "all-equal", np.full(5000, random_words(dtype, 1)[0])
    yield "ones-bits", np.full(1000, np.iinfo(word).max, word)
    yield "ramp", np.arange(5000).astype(word)
    yield "steep-ramp", (np.arange(3000, dtype=np.uint64) * np.uint64(0x0101010101010101)).astype(word)
    sparse = np.zeros(5000, word)
    sparse[::777] = random_words(dtype, len(sparse[::777]))
    yield "few-nonzero", sparse
    yield "two-halves", np.concatenate([np.zeros(2500, word), random_words(dtype, 2500)])
    for share in (5, 50, 99):
        zeros = weights(dtype, 12000, "scattered")
        zeros[rng(f"scattered {share} {dtype}").random(12000) < share / 100] = 0
        yield f"{share}-per-cent-zeros", zeros
    if dtype in FLOATS:
        yield from _float_words(dtype)
    if dtype in ("I8", "U8"):
        values = np.clip(np.rint(20 * rng(f"int8 {dtype}").normal(size=20000)), -128, 127).astype(np.int8)
        yield "quantized", values.view(np.uint8) ^ np.uint8(0x80 * (dtype == "U8"))
    yield from _casts(dtype)


def opaque_input(dtype: str, count: int) -> Input:
    bits, group = OPAQUE[dtype]
    numel = count // group * group
    return Input(f"{numel}", dtype, (numel,), rng(dtype).bytes(numel * bits // 8))


@functools.cache
def small_inputs() -> tuple[Input, ...]:
    """A few hundred inputs: every dtype with every kind of content, all of them quick."""
    inputs = []
    for dtype in (*FLOATS, *PLAIN):
        for name, words in _contents(dtype):
            inputs.append(Input(name, dtype, words.shape, words.tobytes()))
        inputs.append(Input("scalar", dtype, (), random_words(dtype, 1).tobytes()))
        inputs.append(Input("empty", dtype, (0,), b""))
        inputs.append(Input("empty-3d", dtype, (3, 0, 2**40), b""))
        inputs.append(Input("3d", dtype, (3, 5, 7), weights(dtype, 105).tobytes()))
        inputs.append(Input("64d", dtype, (1,) * 63 + (5,), weights(dtype, 5).tobytes()))
    for dtype in OPAQUE:
        inputs.extend(opaque_input(dtype, count) for count in (0, 4, 8, 1000, 100_000))
    return tuple(inputs)


def pattern_inputs() -> list[Input]:
    """Every 16-bit pattern for each dtype, in order and shuffled."""
    inputs = []
    for dtype in (*FLOATS, *PLAIN):
        patterns = every_pattern(dtype)
        shuffled = rng(f"shuffle {dtype}").permutation(np.resize(patterns, 65536))
        inputs.append(Input("every-pattern", dtype, patterns.shape, patterns.tobytes()))
        inputs.append(Input("every-pattern-shuffled", dtype, (256, 256), shuffled.tobytes()))
    return inputs


@functools.cache
def mixed_input(dtype: str) -> Input:
    """Matrices of different scales and their biases in one buffer, as a network's flat parameters: several blocks of
    any size that the encoder chooses."""
    generator, parts = rng(f"mixed tensors {dtype}"), []
    for _ in range(24):
        for count in (30_000, 300):
            values = generator.normal(size=count) * np.exp(generator.uniform(-4, 3))
            if dtype in FLOATS:
                parts.append(values.astype(np.float32).astype(FLOATS[dtype].numpy).view(FLOATS[dtype].word))
            else:
                parts.append((values * 50).astype(np.int64).astype(word_type(dtype)))
    words = np.concatenate(parts)
    return Input("mixed-tensors", dtype, words.shape, words.tobytes())


def boundary_counts(block_words: int) -> list[int]:
    """Numbers of words around the runs, groups and blocks of the format."""
    edges = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, block_words, 2 * block_words)
    return sorted({edge + step for edge in edges for step in (-1, 0, 1)})


def boundary_inputs(dtype: str, block_words: int) -> list[Input]:
    return [
        Input(f"{count}-words", dtype, (count,), weights(dtype, count, "boundary").tobytes())
        for count in boundary_counts(block_words)
    ]


def tiny_input(dtype: str) -> Input:
    """Content whose frame is small enough for a test at each of its bits, with streams of every sort."""
    if dtype in OPAQUE:
        return opaque_input(dtype, 64)
    words = weights(dtype, 300, "tiny")
    words[::50] = random_words(dtype, 6)
    return Input("tiny", dtype, (3, 100), words.tobytes())
