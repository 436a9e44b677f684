"""Pages written: each into a frame of one block, all frames of one size, on a device by one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ....codec import byte_view
from ....codec.device_blocks import encode_page
from ..cuda_kernels import PackedKernel
from ..driver import Kernel
from .new_frames import CODINGS

if TYPE_CHECKING:
    from ..driver import Driver

MOST_WORDS = 1 << 16
"""Of a page: those of one leaf of the content hash."""
_HEADER_NBYTES, _DESCRIPTOR_NBYTES = 160, 15  # page.cuh, encode.cuh
_FRAME_UNIT = 32  # bytes, of which every block and every frame has a multiple
_RUN = 256  # words
_ALIGNMENT = 16  # of slots, for kernels
_FIELDS = {
    torch.bfloat16: (8, 4),
    torch.float16: (11, 3),
    torch.float8_e4m3fn: (4, 3),
    torch.float8_e5m2: (3, 3),
}
"""Bits of the rest of a word, and of its digit."""
_THREADS = 256
_SUMS_NBYTES, _ROOM_NBYTES = 64, 9392  # of shared memory: for each KiB of a page, and besides (page.cuh)
_MOST_STRIDE = 1 << 32


def slot_nbytes(page_words: int, dtype: torch.dtype) -> int:
    """Bytes of the frame of a page that is stored, which no frame exceeds."""
    return _HEADER_NBYTES + _up_to(page_words * dtype.itemsize, _FRAME_UNIT)


def frame_nbytes(page_words: int, dtype: torch.dtype, room: float) -> int:
    """Bytes of a frame of which this part of the words escapes."""
    planes = [bits for number in _FIELDS[dtype] for bits in (8, 4, 2, 1) if number & bits]
    streams = sum(4 * -(-page_words * bits // 32) for bits in planes) + _up_to(int(page_words * room), 4)
    block = _up_to(streams + _DESCRIPTOR_NBYTES, _FRAME_UNIT)
    return min(_HEADER_NBYTES + block, slot_nbytes(page_words, dtype))


def _up_to(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


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
    _check(pool, page_ids, out, sizes, page_words, dtype, nbytes)
    if not len(out):
        return
    pool = pool.detach()
    if driver is None:
        name = CODINGS[dtype].name
        for place, (page, slot) in enumerate(zip(page_ids.tolist(), out, strict=True)):
            inside, target = 0 <= page < len(pool), byte_view(slot, writable=True).data
            sizes[place] = encode_page(byte_view(pool[page]).data, name, target, nbytes) if inside else 0
        return
    whole = page_words % _RUN == 0 and pool.data_ptr() % _ALIGNMENT == 0
    kernel = Kernel("page.cuh", f"encode_pages<{CODINGS[dtype].layout}, {str(whole).lower()}>")
    shared_nbytes = -(-page_words * dtype.itemsize // 1024) * _SUMS_NBYTES + _ROOM_NBYTES
    packed = PackedKernel(
        driver, kernel, _THREADS, shared_nbytes, pool=pool, page_ids=page_ids, out=out, sizes=sizes,
        num_pages=len(pool), page_words=page_words, id_nbytes=page_ids.element_size(), slot_stride=out.stride(0),
        slot_nbytes=out.shape[1], frame_nbytes=nbytes,
    )  # fmt: skip
    packed.launch(driver.stream(), len(out))


def _check(
    pool: torch.Tensor, page_ids: torch.Tensor, out: torch.Tensor, sizes: torch.Tensor, page_words: int,
    dtype: torch.dtype, nbytes: int,
) -> None:  # fmt: skip
    """ValueError unless the tensors are what the kernel expects, which is then all that it trusts."""
    if pool.dtype != dtype or pool.dim() < 1 or not pool.is_contiguous() or pool.numel() != len(pool) * page_words:
        raise ValueError(
            f"expected a contiguous pool of pages of {page_words} elements of {dtype}, got {pool.dtype}, shape "
            f"{tuple(pool.shape)}, strides {pool.stride()}"
        )
    count = len(out) if out.dim() else 0
    if out.dtype != torch.uint8 or out.dim() != 2 or out.shape[1] < nbytes or (count and out.stride(1) != 1):
        raise ValueError(
            f"expected out of uint8 in rows, a slot of {nbytes} bytes or more each, got {out.dtype}, shape "
            f"{tuple(out.shape)}, strides {out.stride()}"
        )
    if count > 1 and not out.shape[1] <= out.stride(0) < _MOST_STRIDE:
        raise ValueError(f"expected slots that do not overlap, less than 4 GiB apart, got strides {out.stride()}")
    odd = out.data_ptr() % _ALIGNMENT or (count > 1 and out.stride(0) % _ALIGNMENT)
    if out.device.type != "cpu" and odd:
        raise ValueError(
            f"expected slots at multiples of {_ALIGNMENT} bytes, got the first at {out.data_ptr():#x} and "
            f"{out.stride(0)} bytes from one to the next; {_up_to(out.shape[1], _ALIGNMENT)} bytes a slot are right"
        )
    for what, tensor, dtypes in (
        ("page_ids", page_ids, (torch.int32, torch.int64)),
        ("sizes", sizes, (torch.int32,)),
    ):
        if tensor.dtype not in dtypes or tensor.shape != (count,) or not tensor.is_contiguous():
            raise ValueError(
                f"expected {what} of {' or '.join(map(str, dtypes))}, contiguous, one for each of {count} slots, got "
                f"{tensor.dtype}, shape {tuple(tensor.shape)}"
            )
    for tensor in (page_ids, out, sizes):
        if tensor.device != pool.device:
            raise ValueError(f"expected all tensors on the pool's device, got {tensor.device} and {pool.device}")
