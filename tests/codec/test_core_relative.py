"""What the binding's calls for relative frames check before the core sees it."""

from __future__ import annotations

import pytest

from tensorwire.codec.frame import core
from tensorwire.codec.frame.form import new_form
from tests.support import registry
from tests.support.frame_surgery import content_hash

NUMEL = 200_000
BLOCK_WORDS = 16_640  # 33,280 bytes: neither divides a leaf of the content hash nor the other way round


def test_what_is_refused() -> None:
    words = registry.weights("BF16", NUMEL, "base")
    base, content = words.tobytes(), (words + 1).tobytes()
    form = new_form(None)
    form.block_words = BLOCK_WORDS
    frame = core.frame_init("BF16", 16, (NUMEL,), 1, form, bytes.fromhex(content_hash(base)))
    with pytest.raises(ValueError, match="hash of 16 bytes"):
        core.frame_init("BF16", 0, (3,), 1, 0, b"short")
    out = bytearray(core.frame_bound(frame))
    for wrong in (None, base[:-2], base + b"\0\0"):
        with pytest.raises(ValueError, match="expected a base"):
            core.compress(frame, content, out, 1, wrong)
    with pytest.raises(ValueError, match="overlaps the base"):
        core.compress(frame, content, out, 1, out)
    scratch = bytearray(len(content) + 64), bytearray(8 * frame.num_blocks), core.Leaves(len(content))
    with pytest.raises(ValueError, match="where the one before ended"):
        core.encode_blocks(frame, 2 * BLOCK_WORDS, content[2 * BLOCK_WORDS :], 0, *scratch, 1, base[2 * BLOCK_WORDS :])
    core.compress(frame, content, out, 1, base)
    memory = bytearray(base)
    data, part = out[frame.header_nbytes : frame.frame_nbytes], memoryview(memory)[:100]
    with pytest.raises(ValueError, match="whole blocks"):
        core.decode(frame, bytes(out[: frame.header_nbytes]), data, 0, 0, 100, part, 1, True, memory)
