"""How many words blocks have, by layout, shape and profile alone, and which blocks of compact are rows of parts."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import tensorwire
from tensorwire.codec import FrameReader
from tests.support import frames, registry
from tests.support.encoders import encode
from tests.support.frames import decompress
from tests.support.registry import FLOATS, PROFILES, Input

PART = 2**15
"""Words of a block of profile fast in a tensor without rows; compact has eight of them in a block."""

compress = partial(frames.compress, profile="compact")


def in_chunks(item: Input, base: bytes | None = None, chunk: int = 1_000_003) -> bytes:
    return encode(item.data, item.dtype, item.shape, base=base, chunk=chunk, profile="compact")


def kinds(frame: bytes) -> list[str]:
    reader = FrameReader(frame)
    return [block.kind for block in reader.block_infos(frame[reader.info.header_nbytes :])]


def block_words(frame: bytes) -> int:
    return tensorwire.frame_info(frame).block_words


def homogeneous(dtype: str, count: int) -> Input:
    values = registry.rng(f"homogeneous {dtype}").normal(size=count).astype(np.float32)
    words = values.astype(FLOATS[dtype].numpy).view(FLOATS[dtype].word)
    return Input("homogeneous", dtype, words.shape, words.tobytes())


@pytest.mark.parametrize("dtype", FLOATS)
def test_mixed_tensors_have_rows_of_parts(dtype: str) -> None:
    item = registry.mixed_input(dtype)
    frame = compress(item)
    assert "parts" in kinds(frame)
    assert len(frame) < 0.995 * len(compress(item, profile="fast"))
    assert decompress(frame) == item.data


@pytest.mark.parametrize("dtype", FLOATS)
def test_content_that_is_alike_has_none(dtype: str) -> None:
    assert "parts" not in kinds(compress(homogeneous(dtype, 2**21 + 9)))


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, PART), (PART, PART), (4 * PART, PART), (4 * PART + 1, 8 * PART), (10 * PART, 8 * PART), (2**22, 8 * PART)],
)
def test_few_blocks_are_those_of_fast(count: int, words: int) -> None:
    """A row of two to four parts takes more than it saves in the index."""
    assert block_words(compress(Input("", "U8", (count,), bytes(count)))) == words


@pytest.mark.parametrize("row", [512, 1000, 24_576, 70_000, 131_072])
def test_blocks_are_whole_rows_wherever_those_of_fast_are(row: int) -> None:
    words = np.frombuffer(registry.mixed_input("BF16").data, np.uint16)
    rows = np.resize(words, len(words) // row * row)
    item = Input("", "BF16", (len(rows) // row, row), rows.tobytes())
    frame = compress(item)
    fast, chosen = block_words(compress(item, profile="fast")), block_words(frame)
    assert chosen % fast == 0
    for first in (0, 1, len(rows) // row - 1):
        start, stop = 2 * row * first, 2 * row * (first + 1)
        assert bytes(tensorwire.decompress_range(frame, start, stop)) == item.data[start:stop]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_content_has_no_say(profile: str) -> None:
    item = registry.mixed_input("BF16")
    alike = Input("", "BF16", item.shape, bytes(len(item.data)))
    assert block_words(compress(item, profile=profile)) == block_words(compress(alike, profile=profile))


@pytest.mark.parametrize("dtype", [*FLOATS, "I16"])
def test_the_bound_holds_whatever_is_chosen(dtype: str) -> None:
    """Also where no block shrinks, so that the frame takes all the room that it may."""
    mixed = registry.mixed_input(dtype)
    for item in (mixed, Input("", dtype, mixed.shape, registry.rng("noise").bytes(len(mixed.data)))):
        bound = tensorwire.compress_bound(item.data, dtype=dtype, profile="compact")
        out = bytearray(bound)
        assert compress(item, out=out) == compress(item)
        assert bound >= len(item.data)


# Relative frames ----------------------------------------------------------------------------------------------------


def test_a_base_that_helps() -> None:
    item = registry.mixed_input("BF16")
    words = np.frombuffer(item.data, np.uint16)
    base = (words ^ (registry.rng("few").random(len(words)) < 0.02)).astype(np.uint16).tobytes()
    frame = compress(item, base=base)
    assert block_words(frame) == block_words(compress(item))
    assert in_chunks(item, base) == frame


def test_a_base_that_does_not_help_costs_nothing() -> None:
    item = registry.mixed_input("BF16")
    base = homogeneous("BF16", len(item.data) // 2).data[::-1]
    frame = compress(item, base=base)
    assert len(frame) <= 1.001 * len(compress(item))
    assert in_chunks(item, base) == frame
    assert decompress(frame, base) == item.data
