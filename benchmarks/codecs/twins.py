"""Dtypes that share a layout, or nearly: python -m benchmarks.codecs.twins.

The same bytes under two names, the second one the dtype that the format has split from the first day. Ratios of all
profiles; benchmarks/results/twins.json keeps them. The contents are 16 MiB of normal weights as floats of 8 bits and as
complex numbers, and what MX formats make of them: their scales, one for 32 weights, and pairs of F4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

import tensorwire
from benchmarks.results_page import keep_rows

if TYPE_CHECKING:
    from tensorwire.codec import Profile

NBYTES = 16 << 20
PROFILES: tuple[Profile, ...] = ("enec", "fast", "compact", "resident")


def _pairs() -> list[tuple[str, str, np.ndarray]]:
    """A dtype, its twin, and bytes of both."""
    weights = np.random.default_rng(0).normal(0, 0.02, NBYTES).astype(np.float32)
    largest = np.abs(weights[: NBYTES // 32 * 32].reshape(-1, 32)).max(axis=1)
    scales = np.floor(np.log2(largest)).astype(np.int16) - 2 + 127
    halves = (weights / np.repeat(np.exp2(scales.astype(np.float32) - 127), 32)).astype(ml_dtypes.float4_e2m1fn)
    nibbles = halves.view(np.uint8)
    fp8 = (weights * 64).astype
    return [
        ("F8_E4M3FNUZ", "F8_E4M3", fp8(ml_dtypes.float8_e4m3fnuz).view(np.uint8)),
        ("F8_E5M2FNUZ", "F8_E5M2", fp8(ml_dtypes.float8_e5m2fnuz).view(np.uint8)),
        ("C64", "F32", weights[: NBYTES // 4].view(np.uint8)),
        ("C128", "F64", np.random.default_rng(1).normal(0, 0.02, NBYTES // 8).view(np.uint8)),
        ("F8_E8M0", "U8", scales.astype(np.uint8)),
        ("F4", "U8", nibbles[::2] | nibbles[1::2] << 4),
    ]


def measure() -> list[dict[str, object]]:
    """A row for each pair and profile: both ratios."""
    rows: list[dict[str, object]] = []
    for dtype, twin, content in _pairs():
        for profile in PROFILES:
            of_dtype, of_twin = (
                content.nbytes / len(tensorwire.compress(content.data, dtype=name, profile=profile))
                for name in (dtype, twin)
            )
            rows.append({"dtype": dtype, "twin": twin, "profile": profile, "ratio": of_dtype, "twin_ratio": of_twin})
    return rows


def main() -> None:
    columns = (
        ("dtype", "dtype", ""), ("twin", "twin", ""), ("profile", lambda row: f"`{row['profile']}`"),
        ("ratio", "ratio", ".4f"), ("ratio as the twin", "twin_ratio", ".4f"),
    )  # fmt: skip
    keep_rows("twins", "python -m benchmarks.codecs.twins", measure(), columns)


if __name__ == "__main__":
    main()
