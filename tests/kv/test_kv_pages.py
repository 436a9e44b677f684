"""Pages where a cache of torch has them: what KVCodec.pages promises, and that a codec on the host reads the frames."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tensorwire.kv import KVCodec  # noqa: E402

SHAPE = (2, 16, 2, 64)


def pool_of(dtype: torch.dtype, count: int = 3) -> torch.Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize(("name", "dtype"), [("BF16", torch.bfloat16), ("F16", torch.float16)])
def test_frames_of_pages_are_those_of_the_codec(name: str, dtype: torch.dtype) -> None:
    """In layouts where a page is contiguous: keys and values of a block, heads and elements."""
    codec = KVCodec("resident", max_ratio=0.95)
    pages, pool = codec.pages(name, SHAPE), pool_of(dtype)
    assert pages.frame_nbytes <= codec.nbytes(name, SHAPE)
    assert pages.frame_nbytes + 32 > codec.nbytes(name, SHAPE)
    ids = torch.tensor([2, 0], dtype=torch.int64)
    slots, sizes = torch.empty((2, pages.slot_nbytes), dtype=torch.uint8), torch.empty(2, dtype=torch.int32)
    pages.encode(pool, ids, slots, sizes)
    assert sizes.tolist() == [pages.frame_nbytes] * 2
    for slot, number in zip(slots, ids.tolist(), strict=True):
        back = torch.empty_like(pool[number])
        codec.decode(slot, back, name, (back.numel(),))
        assert torch.equal(back, pool[number])
    again, status = torch.zeros_like(pool), torch.full((2,), -1, dtype=torch.int32)
    pages.decode(slots, again, ids, status)
    assert status.tolist() == [0, 0]
    assert torch.equal(again[0], pool[0])
    assert torch.equal(again[2], pool[2])
    assert not again[1].any()


def test_a_promise_that_no_frame_keeps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a max_ratio of 0\.77\d+ at least, .* got 0.7"):
        KVCodec("resident", max_ratio=0.7).pages("BF16", SHAPE)
    assert KVCodec("resident", max_ratio=1.0).pages("BF16", SHAPE).frame_nbytes <= int(np.prod(SHAPE)) * 2


@pytest.mark.parametrize("codec", [KVCodec(), KVCodec("resident", transposed=True)])
def test_what_frames_of_one_size_cannot_be_is_refused(codec: KVCodec) -> None:
    with pytest.raises(ValueError, match='expected a KVCodec\\("resident"\\) that does not transpose'):
        codec.pages("BF16", SHAPE)
