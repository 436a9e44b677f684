"""Pages written: each into a frame of one block, all frames of one size, on a device by one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ....codec import DEFAULT_ALIGNMENT, byte_view
from ....codec.device_blocks import encode_page
from ..cuda_kernels import PackedKernel
from ..driver import Kernel
from .operands import ALIGNMENT, CODINGS
from .page_tensors import RUN, check_tensors, up_to

if TYPE_CHECKING:
    from ..driver import Driver

MOST_WORDS = 1 << 16
"""Words of a page: those of one leaf of the content hash."""
_HEADER_NBYTES, _DESCRIPTOR_NBYTES = 160, 15  # page.cuh, encode.cuh
_FIELDS = {
    torch.bfloat16: (8, 4),
    torch.float16: (11, 3),
    torch.float8_e4m3fn: (4, 3),
    torch.float8_e5m2: (3, 3),
}
"""Bits of the rest of a word, and of its digit."""
_THREADS = 256
_SUMS_NBYTES, _ROOM_NBYTES = 64, 9392  # of shared memory: for each KiB of a page, and besides (page.cuh)


def slot_nbytes(page_words: int, dtype: torch.dtype) -> int:
    """Bytes of the frame of a page that is stored, which no frame exceeds."""
    return _HEADER_NBYTES + up_to(page_words * dtype.itemsize, DEFAULT_ALIGNMENT)


def frame_nbytes(page_words: int, dtype: torch.dtype, room: float) -> int:
    """Bytes of a frame of which this part of the words escapes."""
    planes = [bits for number in _FIELDS[dtype] for bits in (8, 4, 2, 1) if number & bits]
    streams = sum(4 * -(-page_words * bits // 32) for bits in planes) + up_to(int(page_words * room), 4)
    block = up_to(streams + _DESCRIPTOR_NBYTES, DEFAULT_ALIGNMENT)
    return min(_HEADER_NBYTES + block, slot_nbytes(page_words, dtype))


def encode_pages(
    pool: torch.Tensor, page_ids: torch.Tensor, out: torch.Tensor, sizes: torch.Tensor, page_words: int,
    dtype: torch.dtype, nbytes: int, driver: Driver | None,
) -> None:  # fmt: skip
    """Encode a page into each slot: `DevicePages.encode`.

    Args:
        nbytes: of a frame.
        driver: that of the tensors' device; None: they are on the CPU, where the core encodes.

    Raises:
        ValueError: a tensor has another dtype, shape, place or device than is expected.
    """
    check_tensors(pool, page_ids, page_words, dtype, least_nbytes=nbytes, out=out, sizes=sizes)
    if not len(out):
        return
    pool = pool.detach()
    if driver is None:
        name = CODINGS[dtype].name
        for place, (page, slot) in enumerate(zip(page_ids.tolist(), out, strict=True)):
            inside, target = 0 <= page < len(pool), byte_view(slot, writable=True).data
            sizes[place] = encode_page(byte_view(pool[page]).data, name, target, nbytes) if inside else 0
        return
    whole = page_words % RUN == 0 and pool.data_ptr() % ALIGNMENT == 0
    kernel = Kernel("page.cuh", f"encode_pages<{CODINGS[dtype].layout}, {str(whole).lower()}>")
    shared_nbytes = -(-page_words * dtype.itemsize // 1024) * _SUMS_NBYTES + _ROOM_NBYTES
    packed = PackedKernel(
        driver, kernel, _THREADS, shared_nbytes, pool=pool, page_ids=page_ids, out=out, sizes=sizes,
        num_pages=len(pool), page_words=page_words, id_nbytes=page_ids.element_size(), slot_stride=out.stride(0),
        slot_nbytes=min(out.shape[1], slot_nbytes(page_words, dtype)), frame_nbytes=nbytes,
    )  # fmt: skip
    packed.launch(driver.stream(), len(out))
