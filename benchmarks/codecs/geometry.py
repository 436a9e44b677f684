"""What the geometry of frames costs in ratio: python -m benchmarks.codecs.geometry. docs/decisions.md judges it.

It compares blocks of whole rows with blocks of the profile's usual size. For each tier shape of profile `resident` it
compares the ratio that the profile would have with this shape alone, the ratio that it has, and that of `fast`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import data, environment, summary
from benchmarks.results_page import Page
from benchmarks.tables import of_columns
from tensorwire.codec import FrameEncoder, compress, dtype_bits, exponent_histogram, float_fields, frame_info

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorwire.codec import Profile

DATASETS = ("minilm-bf16", "minilm-f16", "minilm-f32", "minilm-f8-e4m3", "minilm-f8-e5m2")
PROFILES: tuple[Profile, ...] = ("enec", "fast", "compact", "resident")
SHAPES = (4, 3)
"""Bits of the only tier of a block of profile `resident`."""
UNIT, INDEX_NBYTES = 32, 8
"""Bytes that a block is padded to, and bytes of its entry in the index."""
PARAMS_NBYTES = 15
"""A block of kind cascade whose rest is verbatim has these: 13 of the cascade, the extended kind and the tag."""


def row_blocks(dataset: data.Dataset, profile: Profile) -> tuple[int, int]:
    """Bytes of all frames with blocks of whole rows, and with blocks of the usual size."""
    rows = usual = 0
    for tensor, shape in zip(dataset.tensors(), dataset.shapes, strict=True):
        of_rows = compress(tensor, dtype=dataset.dtype, shape=shape, profile=profile, threads=1)
        flat = compress(tensor, dtype=dataset.dtype, shape=(math.prod(shape),), profile=profile, threads=1)
        # A shape of more sizes makes a longer header, which is no matter of blocks.
        rows += frame_info(of_rows).data_nbytes + INDEX_NBYTES * frame_info(of_rows).num_blocks
        usual += frame_info(flat).data_nbytes + INDEX_NBYTES * frame_info(flat).num_blocks
    return rows, usual


def one_tier(dataset: data.Dataset, width: int) -> tuple[int, int]:
    """Bytes of all frames if each block had one tier of `width` bits, and the words that escape it."""
    blocks = [
        _one_tier_block(dataset.dtype, block, width)
        for tensor, shape in zip(dataset.tensors(), dataset.shapes, strict=True)
        for block in _blocks(dataset.dtype, tensor, shape)
    ]
    return sum(nbytes + INDEX_NBYTES for nbytes, _ in blocks), sum(escapes for _, escapes in blocks)


def _blocks(dtype: str, tensor: memoryview, shape: tuple[int, ...]) -> Iterator[memoryview]:
    step = FrameEncoder(dtype, shape, profile="resident", threads=1).block_nbytes
    for start in range(0, len(tensor), step):
        yield tensor[start : start + step]


def _one_tier_block(dtype: str, block: memoryview, width: int) -> tuple[int, int]:
    """The tier names those 2^width - 1 exponents in a row that most words have. Others take a byte each.

    A block that does not shrink is stored.
    """
    fields = float_fields(dtype)
    assert fields is not None, dtype
    counts = np.array(exponent_histogram(dtype, block), np.int64)
    n, named = int(counts.sum()), min(2**width - 1, len(counts))
    escapes = n - int(np.convolve(counts, np.ones(named, np.int64), "valid").max())
    coded = n * (1 + fields.mantissa_bits + width) // 8 + escapes + PARAMS_NBYTES
    return min(_whole_units(coded), _whole_units(n * dtype_bits(dtype) // 8)), escapes


def _whole_units(nbytes: int) -> int:
    return -(-nbytes // UNIT) * UNIT


def measure(dataset: data.Dataset) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of the first table, and the row of the second one."""
    size = len(dataset.data)
    words = size * 8 // dtype_bits(dataset.dtype)
    blocks = []
    for profile in PROFILES:
        rows, usual = row_blocks(dataset, profile)
        ratios = {"usual": size / usual, "rows": size / rows, "change_percent": 100 * (rows / usual - 1)}
        blocks.append({"data": dataset.name, "profile": profile, **ratios})
    shapes: dict[str, Any] = {"data": dataset.name}
    for width in SHAPES:
        nbytes, escapes = one_tier(dataset, width)
        shapes |= {f"ratio_{width}": size / nbytes, f"escapes_{width}_percent": 100 * escapes / words}
    return blocks, shapes | {row["profile"]: row["rows"] for row in blocks if row["profile"] in ("fast", "resident")}


def _parts(results: dict[str, Any]) -> list[str]:
    facts = results["environment"]
    made = f"{facts['date']}, commit {facts['commit']}, `{facts['command']}`. The data are those of `make bench`."
    about = f"{made}\nHeaders are left out. Ratios are the same on every machine."
    return [
        "# Geometry of frames",
        about,
        of_columns(_BLOCKS, results["blocks"]),
        of_columns(_SHAPES, results["shapes"]),
    ]


_BLOCKS = (
    ("data", "data", ""), ("profile", lambda row: f"`{row['profile']}`"),
    ("ratio, blocks of the usual size", "usual", ".4f"), ("ratio, blocks of whole rows", "rows", ".4f"),
    ("size", lambda row: f"{row['change_percent']:+.4f} %"),
)  # fmt: skip
_SHAPES = (
    ("data", "data", ""), ("shape (4)", "ratio_4", ".4f"),
    ("words that escape", lambda row: f"{row['escapes_4_percent']:.3f} %"), ("shape (3)", "ratio_3", ".4f"),
    ("words that escape", lambda row: f"{row['escapes_3_percent']:.3f} %"), ("`resident`", "resident", ".4f"),
    ("`fast`", "fast", ".4f"),
)  # fmt: skip
PAGE = Page("geometry", _parts)


def main() -> None:
    facts = environment.describe("python -m benchmarks.codecs.geometry", environment.RESULTS)
    measured = [measure(data.load(name)) for name in DATASETS]
    results = summary.rounded(
        {
            "environment": facts,
            "blocks": [row for blocks, _ in measured for row in blocks],
            "shapes": [shapes for _, shapes in measured],
        }
    )
    PAGE.keep(results, environment.RESULTS)


if __name__ == "__main__":
    main()
