"""What FrameReader says of arguments that do not fit, so that nobody fetches sound data again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tensorwire
from tensorwire import BaseMismatchError, CorruptDataError, FrameEncoder, FrameReader, TruncatedDataError, codec
from tests.support import registry
from tests.support.frame_surgery import Surgery

if TYPE_CHECKING:
    from collections.abc import Callable

NUMEL = 300_000
BASE = registry.weights("BF16", NUMEL, "base").tobytes()
OTHER = registry.weights("BF16", NUMEL, "other").tobytes()
CONTENT = bytes(b ^ (i % 50 == 0) for i, b in enumerate(BASE))
NBYTES = len(CONTENT)
PLAIN = tensorwire.compress(CONTENT, dtype="BF16")


def relative_frame() -> bytes:
    """One whose blocks need the base: with another one a mask has other words."""
    return tensorwire.compress(CONTENT, dtype="BF16", base=BASE, profile="compact")


def opened(frame: bytes) -> tuple[FrameReader, bytes]:
    reader = FrameReader(frame)
    return reader, frame[reader.info.header_nbytes :]


@pytest.fixture(scope="module")
def needing() -> tuple[FrameReader, bytes]:
    """A frame that cannot be decoded with OTHER, whatever its blocks are."""
    generator = np.random.default_rng(3)
    for density in (0.01, 0.1, 0.3, 0.5):
        words = np.frombuffer(BASE, np.uint16).copy()
        words[generator.random(NUMEL) < density] += 1
        reader, data = opened(tensorwire.compress(words.tobytes(), dtype="BF16", base=BASE))
        try:
            reader.decode(data, bytearray(NBYTES), base=OTHER)
        except CorruptDataError:
            return reader, data
    raise AssertionError("all of them can be decoded with another base")


def test_a_wrong_base_is_no_damage(needing: tuple[FrameReader, bytes]) -> None:
    reader, data = needing
    assert reader.info.base_hash is not None
    with pytest.raises(BaseMismatchError, match=codec.content_hash(OTHER)):
        reader.decode_and_hash(data, bytearray(NBYTES), base=OTHER, hash_base=True)
    with pytest.raises(CorruptDataError) as decoded:
        reader.decode(data, bytearray(NBYTES), base=OTHER)
    with pytest.raises(CorruptDataError) as hashed:
        reader.decode_and_hash(data, bytearray(NBYTES), base=OTHER, hash_base=False)
    for caught in (decoded, hashed):
        assert f"give the base with content hash {reader.info.base_hash}" in caught.value.advice
        assert "fetch" not in caught.value.advice


@pytest.mark.parametrize("base", [BASE, OTHER], ids=["right", "wrong"])
@pytest.mark.parametrize("verify", [True, False])
def test_damage_is_no_wrong_base(needing: tuple[FrameReader, bytes], base: bytes, verify: bool) -> None:
    reader, data = needing
    damaged = bytearray(data)
    damaged[reader.data_range(0, 2)[1] - 2] ^= 255  # in the parameters of the first block
    with pytest.raises(CorruptDataError) as caught:
        reader.decode(damaged, bytearray(NBYTES), base=base, verify=verify)
    assert caught.value.block == 0
    assert "fetch it again" in caught.value.advice


def test_a_base_is_given_with_relative_frames_alone() -> None:
    reader, data = opened(relative_frame())
    with pytest.raises(BaseMismatchError, match="got none; pass base="):
        reader.decode(data, bytearray(NBYTES))
    with pytest.raises(BaseMismatchError, match=f"got {NBYTES - 2} bytes"):
        reader.decode_and_hash(data, bytearray(NBYTES), base=BASE[2:], hash_base=True)
    with pytest.raises(ValueError, match="of the base, got those at 0 to"):
        reader.decode(data, bytearray(NBYTES), base=BASE[2:])
    plain, blocks = opened(PLAIN)
    with pytest.raises(ValueError, match="expected no base"):
        plain.decode(blocks, bytearray(NBYTES), base=BASE)


@pytest.mark.parametrize(
    "out",
    [
        bytes(NBYTES),
        memoryview(bytearray(2 * NBYTES))[::2],
        np.zeros(2 * NBYTES, np.uint8)[::2],
        np.frombuffer(bytes(NBYTES), np.uint8),
    ],
    ids=["bytes", "strided view", "strided array", "read-only array"],
)
def test_outputs_that_cannot_be_written(out: Any) -> None:
    reader, data = opened(PLAIN)
    with pytest.raises(ValueError, match="expected a writable, C-contiguous buffer"):
        reader.decode(data, out)


@pytest.mark.parametrize("call", [FrameReader.decode, FrameReader.block_infos, FrameReader.check_blocks])
def test_where_the_data_begins(call: Callable[..., Any]) -> None:
    reader, data = opened(PLAIN)
    start, size = reader.block_nbytes, reader.block_nbytes
    lo, hi = reader.data_range(start, start + size)
    decode = call is FrameReader.decode
    options: dict[str, Any] = {"out": bytearray(size), "start": start, "stop": start + size}
    if not decode:
        options = {"first": 1, "count": 1}
    call(reader, data[lo:hi], data_offset=lo, **options)
    for offset in (-1, len(data) + 1, 2**64):
        with pytest.raises(ValueError, match=rf"data_offset of 0 to {len(data)}, got {offset}"):
            call(reader, data[lo:hi], data_offset=offset, **options)
    with pytest.raises(ValueError, match=f"data_offset {lo + 32}") as caught:
        call(reader, data[lo:hi], data_offset=lo + 32, **options)
    assert not isinstance(caught.value, tensorwire.FormatError)
    with pytest.raises(TruncatedDataError, match=r"data_offset 0.*check data_offset"):
        call(reader, data[lo:hi], **options)


@pytest.mark.parametrize("offset", [-1, NBYTES + 1])
def test_where_the_base_begins(offset: int) -> None:
    reader, data = opened(relative_frame())
    with pytest.raises(ValueError, match=rf"base_offset of 0 to {NBYTES}, got {offset}"):
        reader.decode(data, bytearray(NBYTES), base=BASE, base_offset=offset)


@pytest.mark.parametrize("call", [FrameReader.block_infos, FrameReader.check_blocks])
@pytest.mark.parametrize("blocks", [{"first": 10**9}, {"first": -1}, {"first": 0, "count": -1}, {"count": 10**9}])
def test_blocks_that_are_not_there_are_named_as_given(call: Callable[..., Any], blocks: dict[str, int]) -> None:
    reader, data = opened(PLAIN)
    given = ", ".join(f"{name}={number}" for name, number in ({"first": 0} | blocks).items())
    with pytest.raises(ValueError, match=rf"expected blocks within \[0, {reader.info.num_blocks}\), got {given}$"):
        call(reader, data, **blocks)


# What FrameEncoder refuses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [False, True], ids=["chunk", "base"])
def test_an_output_in_the_memory_of_what_is_encoded(base: bool) -> None:
    content = registry.weights("BF16", 100_000, "apart").tobytes()
    encoder = FrameEncoder("BF16", (100_000,), relative=base)
    memory = bytearray(encoder.data_bound(len(content)) + len(content))
    memory[-len(content) :] = content
    part = memoryview(memory)[-len(content) :]
    with pytest.raises(ValueError, match="overlaps the " + ("base" if base else "chunk")):
        encoder.encode(content if base else part, memory, base=part if base else None)
    assert encoder.consumed_nbytes == 0


@pytest.mark.parametrize("bits", [-1, 1025, 2**32 + 8, 8 - 2**32])
def test_bits_that_no_element_has(bits: int) -> None:
    with pytest.raises(ValueError, match="1 to 1024 bits"):
        FrameEncoder("OWN", (10,), bits=bits)


def test_blocks_that_only_the_header_claims() -> None:
    base = bytes(2 << 20)
    frame = tensorwire.compress(base, dtype="U8", base=base)
    reader = FrameReader(frame)
    assert len(reader.block_infos(b"")) == reader.info.num_blocks == 64
    claimed = Surgery(frame)
    claimed.set("uncompressed_nbytes", 1 << 40)
    claimed.set_shape(1 << 40)
    with pytest.raises(ValueError, match="at most 4096 blocks of a frame without an index"):
        FrameReader(claimed.close()).block_infos(b"")
