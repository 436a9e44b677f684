"""The binding's calls for relative frames: what they check before the core sees it, and that streaming is the same."""

from __future__ import annotations

import pytest

from tensorwire import CorruptDataError
from tensorwire.codec.frame import core
from tensorwire.codec.frame.form import new_form
from tests.support import registry
from tests.support.frame_surgery import Surgery, content_hash

NUMEL = 200_000
BLOCK_WORDS = 16_640  # 33,280 bytes: neither divides a leaf of the content hash nor the other way round


def contents() -> tuple[bytes, bytes]:
    """A base, and content that differs in two blocks."""
    base = registry.weights("BF16", NUMEL, "base")
    content = base.copy()
    content[3] ^= 1
    content[5 * BLOCK_WORDS : 6 * BLOCK_WORDS : 100] += 1
    return base.tobytes(), content.tobytes()


def init(base: bytes, profile: str = "fast") -> core.Frame:
    of_base = bytes.fromhex(content_hash(base))
    form = new_form(None)
    form.block_words = BLOCK_WORDS
    return core.frame_init("BF16", 16, (NUMEL,), core.PROFILES.index(profile), form, of_base)


def compress(content: bytes, base: bytes, profile: str = "fast") -> bytes:
    frame = init(base, profile)
    out = bytearray(core.frame_bound(frame))
    core.compress(frame, content, out, 2, base)
    return bytes(out[: frame.frame_nbytes])


def decode(data: bytes, base: bytes | None, out: bytearray) -> None:
    frame = core.decode_header(data)
    core.decode(frame, data, data[frame.header_nbytes :], 0, 0, 2 * NUMEL, out, 2, True, base)


@pytest.mark.parametrize("profile", ["enec", "fast", "compact"])
def test_a_relative_frame_holds_what_changed(profile: str) -> None:
    base, content = contents()
    data = compress(content, base, profile)
    out = bytearray(len(content))
    decode(data, base, out)
    assert out == content
    frame = core.decode_header(data)
    assert bytes(frame.base_hash).hex() == content_hash(base)
    assert bytes(frame.content_hash).hex() == content_hash(content)
    infos = core.block_infos(frame, data, data[frame.header_nbytes :], 0, 0, frame.num_blocks)
    assert [block for block, info in enumerate(infos) if info.nbytes] == [0, 5]


def test_in_place_and_block_by_block() -> None:
    base, content = contents()
    data = compress(content, base)
    frame = core.decode_header(data)
    memory = bytearray(base)
    view = memoryview(memory)
    for start in range(0, len(content), 2 * BLOCK_WORDS):
        stop = min(start + 2 * BLOCK_WORDS, len(content))
        lo, hi = core.block_range(frame, data, start, stop)
        blocks = data[frame.header_nbytes + lo : frame.header_nbytes + hi]
        core.decode(frame, data, blocks, lo, start, stop, view[start:stop], 1, True, view[start:stop], start)
    assert memory == content


def test_nothing_changed_takes_no_index() -> None:
    base, _ = contents()
    data = compress(base, base)
    assert len(data) == 160
    out = bytearray(len(base))
    decode(data, base, out)
    assert out == base
    surgery = Surgery(data)
    surgery.set("content_hash", bytes(16))
    with pytest.raises(CorruptDataError, match="hash"):
        core.decode_header(surgery.close())


def test_chunks_are_the_frame_of_one_call() -> None:
    base, content = contents()
    frame = init(base)
    index, leaves, base_leaves = bytearray(8 * frame.num_blocks), core.Leaves(len(content)), core.Leaves(len(content))
    blocks = b""
    for first in range(0, len(content), 6 * BLOCK_WORDS):  # three blocks
        chunk = content[first : first + 6 * BLOCK_WORDS]
        of_base = base[first : first + 6 * BLOCK_WORDS]
        out = bytearray(core.data_bound(frame, len(of_base)))
        written = core.encode_blocks(frame, first, chunk, len(blocks), out, index, leaves, 1, of_base, base_leaves)
        blocks += out[:written]
    assert core.hash_root(len(base), base_leaves.hashes) == bytes(frame.base_hash)
    header = bytearray(frame.header_nbytes)
    core.encode_header(frame, len(blocks), index, leaves.hashes, b"", header)
    assert bytes(header[: frame.header_nbytes]) + blocks == compress(content, base)


def test_what_is_refused() -> None:
    base, content = contents()
    data = compress(content, base)
    for wrong in (None, base[:-2], base + b"\0\0"):
        frame = init(base)
        with pytest.raises(ValueError, match="expected a base"):
            core.compress(frame, content, bytearray(core.frame_bound(frame)), 1, wrong)
    out = bytearray(len(content))
    for wrong in (None, base[:-2]):
        with pytest.raises(ValueError, match="of the base"):
            decode(data, wrong, out)
    with pytest.raises(ValueError, match="hash of 16 bytes"):
        core.frame_init("BF16", 0, (3,), 1, 0, b"short")
    frame = init(base)
    scratch = bytearray(len(content) + 64), bytearray(8 * frame.num_blocks), core.Leaves(len(content))
    with pytest.raises(ValueError, match="where the one before ended"):
        core.encode_blocks(frame, 2 * BLOCK_WORDS, content[2 * BLOCK_WORDS :], 0, *scratch, 1, base[2 * BLOCK_WORDS :])
    with pytest.raises(ValueError, match="overlaps the base"):
        core.compress(frame, content, out, 1, out)
    memory = bytearray(base)
    frame = core.decode_header(data)
    blocks, part = data[frame.header_nbytes :], memoryview(memory)[:100]
    with pytest.raises(ValueError, match="whole blocks"):
        core.decode(frame, data, blocks, 0, 0, 100, part, 1, True, memory)
