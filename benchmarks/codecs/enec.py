"""How near the enec encoder comes to the least size: every choice of (b, n, m, L) tried with exact group counts.

Written from docs/format.md, apart from the encoder. Slow, so on a sample of blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorwire.codec import FrameReader, compress, dtype_bits, float_fields

if TYPE_CHECKING:
    from benchmarks.data import Dataset

GROUPS = (4, 8, 16, 32)


def sizes(dataset: Dataset, blocks: int) -> dict[str, int]:
    """Bytes of the exponent streams of so many enec blocks, spread over the data.

    Returns:
        nbytes: as encoded; exact_nbytes: the least; fixed_nbytes: the least with groups of 16; blocks: how many.
    """
    fields = float_fields(dataset.dtype)
    assert fields is not None, dataset.dtype
    mask = (1 << fields.exponent_bits) - 1
    frame = compress(dataset.data, profile="enec", dtype=dataset.dtype)
    reader = FrameReader(frame)
    infos = reader.block_infos(frame[reader.info.header_nbytes :][: reader.info.data_nbytes])
    indexes = [i for i, info in enumerate(infos) if info.kind == "enec"]
    words = np.frombuffer(dataset.data, f"u{dtype_bits(dataset.dtype) // 8}")
    total = {"nbytes": 0, "exact_nbytes": 0, "fixed_nbytes": 0, "blocks": 0}
    for i in indexes[:: max(1, len(indexes) // blocks)]:
        start = i * reader.info.block_words
        exponents = words[start : start + infos[i].num_words] >> fields.mantissa_bits & mask
        least = least_nbytes(exponents.astype(np.int64), fields.exponent_bits)
        total["nbytes"] += infos[i].kind_nbytes
        total["exact_nbytes"] += min(least.values())
        total["fixed_nbytes"] += least[16]
        total["blocks"] += 1
    return total


def least_nbytes(exponents: Any, bits: int) -> dict[int, int]:
    """The least bytes of low, mask and high streams, for each group size. `exponents`: integers of `bits` bits."""
    size, lowest, highest = len(exponents), int(exponents.min()), int(exponents.max())
    best = dict.fromkeys(GROUPS, 1 << 62)
    for group in GROUPS:
        starts = np.arange(0, size, group)
        lows, highs = np.minimum.reduceat(exponents, starts), np.maximum.reduceat(exponents, starts)
        members = np.diff(np.append(starts, size))
        for m in range(1, bits):
            for b in range(lowest, highest + 1):
                # y = b - x < 2^m needs b - 2^m < x <= b.
                num_high = int(members[(lows <= b - (1 << m)) | (highs > b)].sum())
                fixed = field_nbytes(size, m) + field_nbytes(len(starts), 1)
                for n in range(m + 1, bits + 1):
                    if n == bits or b - (1 << n - 1) < lowest <= highest <= b + (1 << n - 1):
                        best[group] = min(best[group], fixed + field_nbytes(num_high, n - m))
    return best


def field_nbytes(size: int, width: int) -> int:
    """F(n, w) of the format: the bytes of `size` fields of `width` bits, at most 8."""
    return sum(-(-size * plane // 32) * 4 for plane in (1, 2, 4, 8) if width & plane)
