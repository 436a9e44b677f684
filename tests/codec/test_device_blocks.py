"""The binding of what the core says of blocks for a device; core/tests/test_device_blocks.cpp tests what it says."""

from __future__ import annotations

import struct

import pytest

import tensorwire
from tensorwire import CorruptDataError, FrameReader
from tensorwire.codec.device_blocks import BLOCK_NBYTES, ROW_NBYTES, TAIL_NBYTES, block_offsets, device_blocks
from tests.support import registry

CONTENT = registry.weights("BF16", 100_000).tobytes()
FRAME = bytes(tensorwire.compress(CONTENT, dtype="BF16"))
READER = FrameReader(FRAME)
COUNT = READER.info.num_blocks


def offsets_of(reader: FrameReader) -> tuple[int, ...]:
    memory = bytearray(8 * (reader.info.num_blocks + 1))
    block_offsets(reader, memory)
    return struct.unpack(f"<{reader.info.num_blocks + 1}Q", memory)


def tails() -> bytearray:
    return bytearray(b"".join(FRAME[stop - TAIL_NBYTES : stop] for stop in offsets_of(READER)[1:]))


def test_offsets_are_those_of_the_facts() -> None:
    info = READER.info
    facts = READER.block_infos(FRAME[info.header_nbytes :])
    assert offsets_of(READER) == (*(block.offset for block in facts), info.header_nbytes + info.data_nbytes)


def test_rows_and_blocks_have_the_sizes_that_the_binding_says() -> None:
    """Each row has its ordinal, and each block its kind: these here are all cascades."""
    rows, blocks = bytearray(COUNT * ROW_NBYTES), bytearray(COUNT * BLOCK_NBYTES)
    device_blocks(READER, tails(), rows, blocks)
    assert COUNT > 2
    assert [ordinal for _, ordinal in struct.iter_unpack("<II24x", rows)] == list(range(COUNT))
    assert {kind for (kind,) in struct.iter_unpack("<B15x", blocks)} == {3}


def test_the_wrong_block_is_named() -> None:
    damaged = tails()
    damaged[2 * TAIL_NBYTES - 1] = 1
    with pytest.raises(CorruptDataError, match="expected less padding than a block is aligned to") as caught:
        device_blocks(READER, damaged, bytearray(COUNT * ROW_NBYTES), bytearray(COUNT * BLOCK_NBYTES))
    assert (caught.value.block, caught.value.byte) == (1, offsets_of(READER)[1])


def test_nothing_is_written_to_buffers_of_other_sizes() -> None:
    rows, blocks = COUNT * ROW_NBYTES, COUNT * BLOCK_NBYTES
    for sizes, message in (((rows - 1, blocks), "bytes for rows"), ((rows, blocks + 1), "bytes for blocks")):
        with pytest.raises(ValueError, match=message):
            device_blocks(READER, tails(), *map(bytearray, sizes))
    with pytest.raises(ValueError, match="bytes for offsets"):
        block_offsets(READER, bytearray(8 * COUNT))
    for size in (TAIL_NBYTES * (COUNT - 1), TAIL_NBYTES * COUNT + 1):
        with pytest.raises(ValueError, match=f"each of its {COUNT} blocks, got {size} bytes"):
            device_blocks(READER, bytes(size), bytearray(rows), bytearray(blocks))


def test_a_relative_frame_has_none() -> None:
    other = bytearray(CONTENT)
    other[5] ^= 1
    reader = FrameReader(tensorwire.compress(bytes(other), dtype="BF16", base=CONTENT))
    count = reader.info.num_blocks
    with pytest.raises(ValueError, match="expected a plain frame"):
        device_blocks(reader, bytes(32 * count), bytearray(ROW_NBYTES * count), bytearray(BLOCK_NBYTES * count))
