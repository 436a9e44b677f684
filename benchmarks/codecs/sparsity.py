"""Sparse words and odd distributions beside ZipNN: python -m benchmarks.codecs.sparsity; `make bench` runs it, too.

BF16 weights of which a share is zero, scattered, all plus zeros or half of them minus zeros; and weights whose
exponents are spread in other ways than those of a trained matrix. Ratios are compared with an ideal: the entropy of
the zeros' positions and signs, and for each other word its sign and mantissa and the entropy of the exponents.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from benchmarks import environment, summary
from benchmarks.codecs import contest
from benchmarks.codecs.targets import MIXED
from benchmarks.data import Dataset, entropy
from benchmarks.tables import of_columns
from tensorwire._ground.allocation import new_buffer
from tensorwire.cli.peers import ADAPTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Row = dict[str, Any]
WORDS = 1 << 25
ROUNDS = 5
BUDGET = 4.0
MIXED_WORDS = 1 << 21
"""Words of the buffer with many small tensors. Such networks are that small; a larger buffer would not be mixed."""
SIGMA = 0.02
PER_CENT = (0, 1, 5, 10, 30, 50, 70, 90, 99, 99.9)
CODECS = ("memcpy", "zipnn", "tensorwire fast", "tensorwire compact", "tensorwire resident", "tensorwire enec")


def _normal(size: int, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def _sparse(per_cent: float, *, minus: bool) -> Callable[[int], tuple[str, Any, float]]:
    """A maker of (dtype, words, ideal bits) for a number of words."""

    def make(size: int) -> tuple[str, Any, float]:
        generator = np.random.default_rng(21)
        words = (np.float32(SIGMA) * _normal(size, 20)).astype(ml_dtypes.bfloat16).view(np.uint16)
        rest = 8 + entropy(np.bincount(words >> 7 & 255)) / size
        zeros = np.flatnonzero(generator.random(size, dtype=np.float32) < per_cent / 100)
        words[zeros] = generator.integers(0, 2, len(zeros), dtype=np.uint16) << 15 if minus else 0
        ideal = entropy(np.array([len(zeros), size - len(zeros)])) + minus * len(zeros) + rest * (size - len(zeros))
        return "BF16", words, ideal

    return make


def _floats(name: str, exponent_bits: int, mantissa_bits: int, values: Any, *, signed: bool = True) -> Any:
    """Words with the order-0 bound of their exponents; sign and mantissa stand raw."""
    words = values.view(f"u{values.dtype.itemsize}").reshape(-1)
    counts = np.bincount(words >> mantissa_bits & (1 << exponent_bits) - 1)
    return name, words, entropy(counts) + words.size * (mantissa_bits + signed)


def _bf16(values: Any) -> Any:
    return _floats("BF16", 8, 7, values.astype(ml_dtypes.bfloat16))


def _exp_avg_sq(size: int) -> Any:
    values = (np.exp(4 * _normal(size, 30).astype(np.float64)) * 1e-12).astype(np.float32)
    return _floats("F32", 8, 23, values, signed=False)


def _laplace(size: int) -> Any:
    """Convolutions: 3 by 3 kernels of 512 channels in, a scale for each channel out."""
    generator = np.random.default_rng(31)
    row = 512 * 9
    values = generator.laplace(size=size).astype(np.float32)
    scales = np.exp(0.3 * generator.standard_normal(-(-size // row))).astype(np.float32)
    return _bf16(values * np.repeat(SIGMA * scales, row)[:size])


def _columns(size: int) -> Any:
    scales = np.exp(0.5 * np.random.default_rng(32).standard_normal(4096)).astype(np.float32)
    return _bf16(_normal(size, 33) * np.resize(SIGMA * scales, size))


def _uniform(size: int) -> Any:
    return _bf16(np.random.default_rng(34).uniform(-0.05, 0.05, size))


def _f8_blocks(size: int) -> Any:
    """Blocks of 128 by 128, each scaled so that its largest value is the largest of the dtype."""
    blocks = _normal(size // 16384 * 16384, 35).reshape(-1, 16384)
    values = blocks * (np.float32(448) / np.abs(blocks).max(axis=1, keepdims=True))
    return _floats("F8_E4M3", 4, 3, values.astype(ml_dtypes.float8_e4m3fn))


def _f16_subnormals(size: int) -> Any:
    return _floats("F16", 5, 10, (np.float32(2e-5) * _normal(size, 36)).astype(np.float16))


def _mixed(size: int) -> Any:
    """Tensors of a small FP32 network for speech, one behind the other: matrices, their biases, and norms around 1."""
    generator = np.random.default_rng(38)
    size = min(size, MIXED_WORDS)
    parts, left = [], size
    while left > 0:
        channels = int(generator.choice([64, 128, 256]))
        scale = np.float32(0.3 / np.sqrt(channels) * np.exp(0.5 * generator.standard_normal()))
        parts.append(scale * generator.standard_normal(3 * channels**2, np.float32))
        parts.append(np.float32(0.1) * scale * generator.standard_normal(channels, np.float32))
        parts.append(1 + np.float32(0.1) * generator.standard_normal(channels, np.float32))
        left -= 3 * channels**2 + 2 * channels
    return _floats("F32", 8, 23, np.concatenate(parts)[:size])


def _int8(size: int) -> Any:
    words = np.clip(np.rint(20 * _normal(size, 37)), -128, 127).astype(np.int8).view(np.uint8)
    return "I8", words, entropy(np.bincount(words))


MAKERS: dict[str, Callable[[int], tuple[str, Any, float]]] = {
    **{f"zeros {share} %": _sparse(share, minus=False) for share in PER_CENT},
    **{f"zeros {share} %, half minus": _sparse(share, minus=True) for share in PER_CENT[1:]},
    "exp_avg_sq": _exp_avg_sq,
    "Laplace convolutions": _laplace,
    "columns of lognormal scale": _columns,
    "uniform": _uniform,
    "F8 with block scales": _f8_blocks,
    "F16 subnormals": _f16_subnormals,
    "int8, sigma 20": _int8,
    MIXED: _mixed,
}


def measure(name: str, size: int, rounds: int) -> list[Row]:
    """A row for each codec that takes the data, one thread, checksums verified."""
    dtype, words, ideal = MAKERS[name](size)
    data = new_buffer(words.nbytes)
    np.frombuffer(data, words.dtype)[:] = words
    dataset = Dataset(name, dtype, (name,), (words.shape,), data)
    adapters = [adapter for adapter in ADAPTERS if adapter.name in CODECS]
    rows = contest.run(dataset, "whole", [1], rounds, BUDGET, adapters, unverified=False)
    ideal_ratio = 8 * words.nbytes / ideal
    return [_row(row, ideal_ratio) for row in rows]


def _row(row: Row, ideal: float) -> Row:
    found: Row = {key: row[key] for key in ("dataset", "codec", "cpu", "ratio")}
    found["of_ideal"] = row["ratio"] / ideal
    for direction in ("compress", "decompress"):
        figure = row[direction]
        found[direction] = {"median": figure["median"]}
        for yardstick in ("vs_memcpy", "vs_zipnn"):
            if figure[yardstick]:
                found[direction][yardstick] = figure[yardstick]["median"]
    return found


def measure_all(names: list[str], size: int, rounds: int) -> list[Row]:
    return [row for name in names for row in measure(name, size, rounds)]


def run(names: Iterable[str], size: int, rounds: int) -> list[Row]:
    """Rows on every CPU target that is here and is not the scalar one."""
    found = environment.on_each_target(measure_all, list(names), size, rounds, **environment.ALLOCATOR)
    return [{**row, "target": target} for target, rows in found.items() for row in rows]


def render(rows: Iterable[Row]) -> str:
    """A Markdown table."""
    columns = (
        ("data", "dataset", ""), ("CPU target", "target", ""), ("codec", "codec", ""), ("ratio", "ratio", ".4f"),
        ("of the ideal", "of_ideal", ".4f"), ("compress", "compress.median", ".2f"),
        ("of memcpy", "compress.vs_memcpy", ".3f"),
        ("decompress", "decompress.median", ".2f"),
        ("of memcpy", "decompress.vs_memcpy", ".3f"),
        ("times ZipNN", "decompress.vs_zipnn", ".3f"),
    )  # fmt: skip
    return of_columns(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=WORDS, help="words of each tensor")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--names", nargs="+", default=list(MAKERS), choices=list(MAKERS), metavar="NAME")
    options = parser.parse_args()
    rows = summary.rounded(run(options.names, options.words, options.rounds))
    print(render(rows))


if __name__ == "__main__":
    main()
