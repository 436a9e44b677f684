"""How the encoder chooses the size of blocks: whole rows, and in profile compact what fits the content."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import tensorwire
from tensorwire.codec import FrameEncoder, core
from tensorwire.codec.frames import new_frame
from tests.support import frames, registry
from tests.support.frames import decompress
from tests.support.registry import FLOATS, PROFILES, Input

USUAL = 2**18
"""Words of a block of profile compact in a tensor without rows."""
SAMPLE_NBYTES = 4 * 2**20


compress = partial(frames.compress, profile="compact")


def in_chunks(item: Input, base: bytes | None = None, chunk: int = 1_000_003, *, shown: bool = True) -> bytes:
    """The frame of an encoder that was shown the beginning, or was not."""
    encoder = FrameEncoder(
        item.dtype,
        item.shape,
        profile="compact",
        relative=base is not None,
        beginning=item.data[:SAMPLE_NBYTES] if shown else None,
        base_beginning=base[:SAMPLE_NBYTES] if shown and base is not None else None,
    )
    blocks = b""
    for start in range(0, len(item.data), chunk):
        part = item.data[start : start + chunk]
        out = bytearray(encoder.data_bound(len(part)))
        old = None if base is None else base[start : start + chunk]
        blocks += out[: encoder.encode(part, out, base=old)]
    return encoder.finish() + blocks


def block_words(frame: bytes) -> int:
    return tensorwire.frame_info(frame).block_words


def homogeneous(dtype: str, count: int) -> Input:
    values = registry.rng(f"homogeneous {dtype}").normal(size=count).astype(np.float32)
    words = values.astype(FLOATS[dtype].numpy).view(FLOATS[dtype].word)
    return Input("homogeneous", dtype, words.shape, words.tobytes())


@pytest.mark.parametrize("dtype", FLOATS)
def test_mixed_tensors_get_smaller_blocks_that_pay(dtype: str) -> None:
    item = registry.mixed_input(dtype)
    fitted, usual = compress(item), in_chunks(item, shown=False)
    assert block_words(usual) == USUAL
    assert block_words(fitted) in (2**15, 2**16, 2**17)
    assert len(fitted) < 0.995 * len(usual)
    for frame in (fitted, usual):
        assert decompress(frame) == item.data


@pytest.mark.parametrize("dtype", [*FLOATS, "I8", "I16", "F64"])
def test_chunks_give_the_bytes_of_one_call(dtype: str) -> None:
    item = registry.mixed_input(dtype)
    assert in_chunks(item) == compress(item)
    assert in_chunks(item, chunk=100_000) == compress(item)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_the_choice(threads: int) -> None:
    item = registry.mixed_input("BF16")
    assert compress(item, threads=threads) == compress(item, threads=3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_content_that_is_alike_keeps_the_usual_blocks(dtype: str) -> None:
    for count in (1000, 2**15, 2**15 + 1, 700_001, 2**21 + 9):
        assert block_words(compress(homogeneous(dtype, count))) == USUAL, count


@pytest.mark.parametrize("dtype", ["BF16", "I32", "U8"])
@pytest.mark.parametrize("content", ["zeros", "random"])
def test_content_without_statistics_keeps_the_usual_blocks(dtype: str, content: str) -> None:
    words = registry.random_words(dtype, 900_000) if content == "random" else np.zeros(900_000, "u1")
    assert (
        block_words(compress(Input("", dtype, (900_000,), words.astype(registry.word_type(dtype)).tobytes()))) == USUAL
    )


def test_only_the_beginning_decides() -> None:
    mixed, alike = registry.mixed_input("F32").data, homogeneous("F32", 2**20).data
    assert len(alike) == SAMPLE_NBYTES
    beginning = (mixed * 2)[:SAMPLE_NBYTES]
    smaller = block_words(compress(Input("", "F32", (2**21,), beginning + alike)))
    assert 2**15 <= smaller < USUAL
    assert block_words(compress(Input("", "F32", (2**21,), alike + beginning))) == USUAL


@pytest.mark.parametrize("row", [512, 1000, 24_576, 70_000, 131_072])
def test_fitted_blocks_are_whole_rows_wherever_usual_ones_are(row: int) -> None:
    words = np.frombuffer(registry.mixed_input("BF16").data, np.uint16)
    rows = np.resize(words, len(words) // row * row)
    item = Input("", "BF16", (len(rows) // row, row), rows.tobytes())
    usual = new_frame("BF16", 0, item.shape, "compact").block_words
    frame = compress(item)
    chosen = block_words(frame)
    assert chosen % 256 == 0
    assert usual % row != 0 or chosen % row == 0
    assert chosen < usual or row > 65_536
    for first in (0, 1, len(rows) // row - 1):
        start, stop = 2 * row * first, 2 * row * (first + 1)
        assert bytes(tensorwire.decompress_range(frame, start, stop)) == item.data[start:stop]


@pytest.mark.parametrize("profile", [profile for profile in PROFILES if profile != "compact"])
def test_other_profiles_do_not_look_at_the_content(profile: str) -> None:
    item = registry.mixed_input("BF16")
    assert block_words(compress(item, profile=profile)) == new_frame("BF16", 0, item.shape, profile).block_words


@pytest.mark.parametrize("dtype", [*FLOATS, "I16"])
def test_the_bound_holds_whatever_is_chosen(dtype: str) -> None:
    """Also where no block shrinks, so that the frame takes all the room that it may."""
    mixed = registry.mixed_input(dtype)
    for item in (mixed, Input("", dtype, mixed.shape, registry.rng("noise").bytes(len(mixed.data)))):
        bound = tensorwire.compress_bound(item.data, dtype=dtype, profile="compact")
        out = bytearray(bound)
        assert compress(item, out=out) == compress(item)
        least = -(-len(item.data) // np.dtype(registry.word_type(dtype)).itemsize // 2**15)
        assert bound >= 128 + 8 + 8 * least + len(item.data)


# Relative frames ----------------------------------------------------------------------------------------------------


def test_a_base_that_helps_keeps_the_usual_blocks() -> None:
    item = registry.mixed_input("BF16")
    words = np.frombuffer(item.data, np.uint16)
    base = words ^ (registry.rng("few").random(len(words)) < 0.02)
    frame = compress(item, base=base.astype(np.uint16).tobytes())
    assert block_words(frame) == USUAL
    assert in_chunks(item, base.astype(np.uint16).tobytes()) == frame


def test_a_base_that_does_not_help_costs_nothing() -> None:
    item = registry.mixed_input("BF16")
    base = homogeneous("BF16", len(item.data) // 2).data[::-1]
    frame = compress(item, base=base)
    assert block_words(frame) == block_words(compress(item)) < USUAL
    assert len(frame) <= 1.001 * len(compress(item))
    assert in_chunks(item, base) == frame
    assert decompress(frame, base) == item.data


# What is refused ----------------------------------------------------------------------------------------------------


def test_a_beginning_that_is_too_short() -> None:
    item = registry.mixed_input("BF16")
    with pytest.raises(ValueError, match=f"the first {len(item.data)} bytes"):
        FrameEncoder("BF16", item.shape, profile="compact", beginning=item.data[:-1])
    with pytest.raises(ValueError, match="the first"):
        core.frame_fit(new_frame("BF16", 0, item.shape, "compact"), item.data, item.data[:-1])
