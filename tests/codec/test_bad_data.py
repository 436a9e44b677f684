"""Damaged and hostile frames: a named error, never a crash, a hang, wrong data or an allocation out of proportion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tensorwire
from tensorwire import (
    CorruptDataError,
    FormatError,
    LimitExceededError,
    TruncatedDataError,
    UnsupportedTensorError,
    UnsupportedVersionError,
    codec,
)
from tensorwire.codec import FrameReader
from tensorwire.codec.frame import core as _core
from tests.support import registry
from tests.support.frame_surgery import STORED, Surgery
from tests.support.frames import BLOCK_ERRORS, compress, decompress
from tests.support.registry import DTYPES, PROFILES, Input

if TYPE_CHECKING:
    from collections.abc import Callable


def usual_block_words(profile: str) -> int:
    """Words of a block where the tensor has no rows."""
    return tensorwire.frame_info(compress(Input("", "U8", (1,), b"\1"), profile)).block_words


def blocks_frame(profile: str = "fast") -> bytes:
    """A frame of five blocks, no two alike."""
    words = registry.weights("BF16", 4 * usual_block_words(profile) + 100, "several blocks")
    return compress(Input("", "BF16", words.shape, words.tobytes()), profile)


# Damage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_truncation_at_every_byte(dtype: str, profile: str, stride: int) -> None:
    """Every seventh in the quick test, but for one dtype."""
    frame = compress(registry.tiny_input(dtype), profile)
    for length in range(0, len(frame), 1 if dtype == "BF16" else stride):
        with pytest.raises(TruncatedDataError) as caught:
            decompress(frame[:length])
        assert caught.value.byte is not None
        assert caught.value.byte <= length


@pytest.mark.parametrize("stride", [15, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", [*registry.FLOATS, "F64", "I32", "U8", "MXINT_12"])
def test_single_bit_flips_are_found(dtype: str, profile: str, stride: int) -> None:
    """Each bit of one dtype's header, and of every second other byte another one in turn; in the slow test each bit."""
    item = registry.tiny_input(dtype)
    frame = bytearray(compress(item, profile))
    header_nbits = 8 * tensorwire.frame_info(frame).header_nbytes
    every = 1 if dtype == "BF16" else stride
    for bit in (*range(0, header_nbits, every), *range(header_nbits, 8 * len(frame), stride)):
        frame[bit // 8] ^= 1 << bit % 8
        try:
            decompress(frame)
        except FormatError:
            pass
        else:
            pytest.fail(f"bit {bit} of {len(frame)} bytes was flipped and not found")
        frame[bit // 8] ^= 1 << bit % 8
    assert decompress(frame) == item.data


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", registry.FLOATS)
def test_unverified_damage_gives_an_error_or_as_many_bytes(dtype: str, profile: str, stride: int) -> None:
    item = registry.tiny_input(dtype)
    frame = bytearray(compress(item, profile))
    start = tensorwire.frame_info(frame).header_nbytes
    results = set()
    for bit in range(8 * start, 8 * len(frame), stride):
        frame[bit // 8] ^= 1 << bit % 8
        out = bytearray(b"\xa5" * (len(item.data) + 64))
        try:
            tensorwire.decompress(frame, out=memoryview(out)[32:-32], verify=False, threads=1)
            results.add("decoded")
        except BLOCK_ERRORS:
            results.add("refused")
        assert out[:32] == out[-32:] == b"\xa5" * 32
        frame[bit // 8] ^= 1 << bit % 8
    assert "decoded" in results


@pytest.mark.parametrize("trials", [300, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", registry.FLOATS)
def test_damage_behind_right_checksums(dtype: str, profile: str, trials: int) -> None:
    """Any block that passes its checksum decodes or is refused; what is written stays within the output."""
    words = registry.weights(dtype, 1500, "hashed damage")
    words[300:600] = 0
    words[::97] = registry.random_words(dtype, len(words[::97]))
    item = Input("", dtype, words.shape, words.tobytes())
    frame = compress(item, profile)
    generator = registry.rng(f"damage {dtype} {profile}")
    start, stop = Surgery(frame).block_span(0)
    blocks = set()
    for trial in range(trials):
        surgery = Surgery(frame)
        # The descriptor stands at the end: half of the damage goes there.
        low = start if trial % 2 else max(start, stop - 48)
        for position in generator.integers(low, stop, generator.integers(1, 4)):
            surgery.bytes[position] = generator.integers(0, 256)
        surgery.rehash_block(0)
        out = bytearray(b"\xa5" * (len(item.data) + 64))
        try:
            tensorwire.decompress(surgery.close(), out=memoryview(out)[32:-32], threads=1)
        except BLOCK_ERRORS as error:
            blocks.add(error.block)
        assert out[:32] == out[-32:] == b"\xa5" * 32
    assert blocks == {0}


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_thousands_of_bit_flips_in_a_large_frame(profile: str) -> None:
    words = registry.weights("BF16", 2_000_000, "large")
    frame = bytearray(compress(Input("", "BF16", words.shape, words.tobytes()), profile))
    out = bytearray(words.nbytes)
    for bit in registry.rng("flips").integers(0, 8 * len(frame), 3000).tolist():
        frame[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            tensorwire.decompress(frame, out=out)
        frame[bit // 8] ^= 1 << bit % 8
    tensorwire.decompress(frame, out=out)
    assert out == words.tobytes()


def test_a_damaged_block_is_named() -> None:
    frame = bytearray(blocks_frame())
    start, stop = Surgery(frame).block_span(2)
    frame[stop - 100] ^= 4
    with pytest.raises(CorruptDataError) as caught:
        decompress(frame)
    assert caught.value.block == 2
    assert start <= caught.value.byte < stop


def test_a_range_next_to_a_damaged_block_still_decodes() -> None:
    frame = bytearray(blocks_frame())
    info = tensorwire.frame_info(frame)
    block_nbytes = 2 * info.block_words
    expected = bytes(tensorwire.decompress_range(frame, 0, block_nbytes))
    frame[Surgery(frame).block_span(1)[0]] ^= 1
    assert tensorwire.decompress_range(frame, 0, block_nbytes) == expected
    with pytest.raises(CorruptDataError):
        tensorwire.decompress_range(frame, 0, block_nbytes + 1)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", [*registry.FLOATS, "F64", "I32", "U8"])
def test_swapped_blocks_with_their_own_checksums_decode_as_what_they_are(dtype: str, profile: str) -> None:
    """Checksums cover a block's bytes, not its place: the content hash in the header tells."""
    block_words = usual_block_words(profile)
    words = registry.weights(dtype, 2 * block_words, "swap")
    surgery = Surgery(compress(Input("", dtype, words.shape, words.tobytes()), profile))
    (first, second), (_, stop) = surgery.block_span(0), surgery.block_span(1)
    checksums = [surgery.entry(block)[1] for block in range(2)]
    stored = surgery.entry(0)[0]  # bit 31, which both have or neither
    assert surgery.entry(1)[0] & STORED == stored
    surgery.bytes[first:stop] = surgery.bytes[second:stop] + surgery.bytes[first:second]
    surgery.set_entry(1, (stop - second) // 32 | stored, checksums[1])
    with pytest.raises(CorruptDataError) as caught:
        decompress(surgery.close())
    assert caught.value.block == 0
    surgery.set_entry(0, stored, checksums[1])
    surgery.set_entry(1, (stop - second) // 32 | stored, checksums[0])
    swapped = decompress(surgery.close())
    assert swapped == words[block_words:].tobytes() + words[:block_words].tobytes()
    assert tensorwire.codec.content_hash(swapped) != tensorwire.frame_info(surgery.bytes).content_hash


# Hostile headers ----------------------------------------------------------------------------------------------------


def field(name: str, value: int | bytes) -> Callable[[Surgery], object]:
    return lambda surgery: surgery.set(name, value)


def swap_blocks(surgery: Surgery) -> None:
    first, second = surgery.entry(1), surgery.entry(2)
    surgery.set_entry(1, *second)
    surgery.set_entry(2, *first)


def claim_huge(surgery: Surgery) -> None:
    surgery.set_shape(2**51)
    surgery.set("uncompressed_nbytes", 2**52)


# tests/support/malformed_headers.py has all other faults of headers.
HOSTILE = [
    *[(f"feature-{bit}", field("required_features", 1 << bit), UnsupportedVersionError) for bit in range(9, 31)],
    ("dtype-newline", field("dtype", b"BF16\n"), CorruptDataError),
    ("dtype-high", field("dtype", b"BF16\xff"), CorruptDataError),
    ("header-2^64-32", field("header_nbytes", 2**64 - 32), LimitExceededError),
    ("uncompressed-2^64-1", field("uncompressed_nbytes", 2**64 - 1), LimitExceededError),
    ("data-0", field("data_nbytes", 0), CorruptDataError),
    ("data-2^64-32", field("data_nbytes", 2**64 - 32), LimitExceededError),
    ("data-2^36-32", field("data_nbytes", 2**36 - 32), CorruptDataError),
    # Times 16 bits this is, in 64-bit arithmetic, what it was.
    ("shape-wraps", lambda s: s.set_shape(s.get("uncompressed_nbytes") // 2 + 2**60), FormatError),
    ("huge-but-consistent", claim_huge, FormatError),
    ("index-swapped", swap_blocks, CorruptDataError),
    ("index-far-behind-the-end", lambda s: s.set_entry(4, 2**32 - 1, s.entry(4)[1]), CorruptDataError),
]


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_hostile_header(change: Callable[[Surgery], object], expected: type[FormatError]) -> None:
    surgery = Surgery(blocks_frame())
    change(surgery)
    frame = surgery.close()
    with pytest.raises(expected) as caught:
        decompress(frame)
    if expected is not FormatError:
        assert "checksum" not in caught.value.message, "refused for its checksum, not for the field"


@pytest.mark.parametrize("ndim", [2, 3, 64])
def test_overflowing_shapes(ndim: int) -> None:
    item = Input("", "U8", (1,) * ndim, b"x")
    for sizes in ((2**32,) * ndim, (2**63, 2) + (1,) * (ndim - 2), (2**64 - 1,) * ndim):
        surgery = Surgery(compress(item))
        surgery.set_shape(*sizes)
        with pytest.raises(LimitExceededError):
            decompress(surgery.close())
    # A zero makes the product zero, whatever the others are.
    empty = Surgery(compress(Input("", "U8", (0,) * ndim, b"")))
    empty.set_shape(*(2**64 - 1,) * (ndim - 1), 0)
    assert decompress(empty.close()) == b""


@pytest.mark.parametrize("sizes", [(2**64 - 1, 0), (0, 2**63), (2**62, 0, 2**62)])
def test_empty_tensors_that_no_framework_can_shape(sizes: tuple[int, ...]) -> None:
    pytest.importorskip("torch")
    surgery = Surgery(compress(Input("", "F32", (0,) * len(sizes), b"")))
    surgery.set_shape(*sizes)
    frame = surgery.close()
    for framework, title in (("np", "NumPy"), ("pt", "torch")):
        with pytest.raises(UnsupportedTensorError, match=f"{title} has no arrays of shape"):
            tensorwire.decompress(frame, framework=framework)
    assert tensorwire.frame_info(frame).shape == sizes
    assert decompress(frame) == b""


def test_constant_bomb_is_bounded_and_respects_max_nbytes() -> None:
    """A block of 32 bytes and 8 of index stand for at most 2 MiB."""
    bomb = compress(Input("", "F64", (2**23,), bytes(2**26)), "compact")
    assert 2**21 / 40 * len(bomb) >= 2**26
    with pytest.raises(LimitExceededError):
        decompress(bomb, max_nbytes=2**20)


def test_header_size_is_known_from_the_fixed_part() -> None:
    frame = blocks_frame()
    info = tensorwire.frame_info(frame)
    assert FrameReader.header_size(frame[:128]) == info.header_nbytes
    assert FrameReader.header_size(frame) == info.header_nbytes
    with pytest.raises(TruncatedDataError):
        FrameReader.header_size(frame[:127])
    surgery = Surgery(frame)
    surgery.set("header_nbytes", 2**50)
    with pytest.raises(LimitExceededError):
        FrameReader.header_size(bytes(surgery.bytes[:128]))


@pytest.mark.parametrize("call", ["decode_fixed", "exponent_histogram"])
def test_a_buffer_is_held_while_the_core_reads_it(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that resizes it in the meantime is refused; memory that was freed is never read."""
    buffer = bytearray(blocks_frame())
    core, calls = getattr(_core, call), []

    def resize_and_call(*arguments: object) -> object:
        calls.append(call)
        with pytest.raises(BufferError):
            buffer.clear()
        return core(*arguments)

    monkeypatch.setattr(_core, call, resize_and_call)
    assert tensorwire.frame_info(buffer).num_blocks == 5
    assert sum(codec.exponent_histogram("BF16", buffer)) == len(buffer) // 2
    assert calls == [call]
    buffer.clear()


def test_data_that_ends_early_is_no_block_s_fault() -> None:
    frame = blocks_frame()
    reader = FrameReader(frame)
    info = reader.info
    data = frame[info.header_nbytes : info.header_nbytes + info.data_nbytes - 1]
    with pytest.raises(TruncatedDataError) as caught:
        reader.decode(data, bytearray(info.uncompressed_nbytes))
    assert caught.value.block is None
    assert caught.value.byte == info.header_nbytes + len(data)
