"""Pages read: frames of one page each, decoded into a pool in place, all checks on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ....codec import FROM_TORCH, decompress, dtype_bits, frame_info
from ....errors import FormatError
from ..cuda_kernels import PackedKernel
from ..driver import Kernel
from .status import Status, status_of

if TYPE_CHECKING:
    from ..driver import Driver

LAYOUTS = {
    torch.bfloat16: "Bf16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8E4M3",
    torch.float8_e5m2: "F8E5M2",
}
"""Of words in pages, by their names in the kernels."""
MOST_WORDS = 1 << 16
_RUN = 256
_ALIGNMENT = 16
_FRAME_UNIT = 32  # bytes, of which every frame has a multiple
_THREADS = 256
_MOST_SLOT_NBYTES = 1 << 31


def decode_pages(
    frames: torch.Tensor,
    pool: torch.Tensor,
    page_ids: torch.Tensor,
    status: torch.Tensor,
    page_words: int,
    driver: Driver | None,
) -> None:
    """Decode a frame of each slot into the page of the pool that has its number: `DevicePages.decode`.

    Args:
        driver: that of the tensors' device; None: they are on the CPU, where the core decodes.

    Raises:
        ValueError: a tensor has another dtype, shape, place or device than is expected.
    """
    _check(frames, pool, page_ids, status, page_words)
    frames = frames[:, : frames.shape[1] // _FRAME_UNIT * _FRAME_UNIT]
    if not len(frames):
        return
    if driver is None:
        for place, (slot, page) in enumerate(zip(frames, page_ids.tolist(), strict=True)):
            inside = 0 <= page < len(pool)
            status[place] = _decode_slot(slot, pool[page]) if inside else Status.ANOTHER_TENSOR
        return
    label = FROM_TORCH[_name(pool.dtype)].encode().ljust(12, b"\0")
    labels = {f"label{k}": int.from_bytes(label[4 * k : 4 * k + 4], "little") for k in range(3)}
    kernel = Kernel("unpage.cuh", f"unpage<{LAYOUTS[pool.dtype]}, {str(page_words % _RUN == 0).lower()}>")
    packed = PackedKernel(
        driver, kernel, _THREADS, frames=frames, stride=frames.stride(0), slot_nbytes=frames.shape[1],
        page_ids=page_ids, id_nwords=page_ids.element_size() // 4, pool=pool, num_pages=len(pool),
        page_words=page_words, **labels, status=status,
    )  # fmt: skip
    packed.launch(driver.stream(), len(frames))


def _decode_slot(slot: torch.Tensor, page: torch.Tensor) -> Status:
    """By the core. The page is written only if all of the frame is right."""
    label = FROM_TORCH[_name(page.dtype)]
    try:
        info = frame_info(slot)
        if (info.dtype, info.bits, info.uncompressed_nbytes) != (label, dtype_bits(label), page.nbytes):
            return Status.ANOTHER_TENSOR
        if info.base_hash is not None:
            return Status.BASE_MISMATCH
        content = torch.empty_like(page)
        decompress(slot, out=content)
    except FormatError as error:
        return status_of(error)
    page.copy_(content)
    return Status.DONE


def _check(
    frames: torch.Tensor, pool: torch.Tensor, page_ids: torch.Tensor, status: torch.Tensor, page_words: int
) -> None:
    """ValueError unless the tensors are what the kernel expects, which is then all that it trusts."""
    if pool.dim() < 1 or not pool.is_contiguous() or pool.numel() != len(pool) * page_words:
        raise ValueError(
            f"expected a contiguous pool of pages of {page_words} elements, got shape {tuple(pool.shape)}, "
            f"strides {pool.stride()}"
        )
    if frames.dtype != torch.uint8 or frames.dim() != 2 or (frames.numel() and frames.stride(1) != 1):
        raise ValueError(
            "expected frames of uint8 in rows, a slot each, got "
            f"{frames.dtype}, shape {tuple(frames.shape)}, strides {frames.stride()}"
        )
    if frames.shape[1] >= _MOST_SLOT_NBYTES or (len(frames) > 1 and not 0 <= frames.stride(0) < 1 << 32):
        raise ValueError(f"expected slots of less than 2 GiB, got strides {frames.stride()}")
    for what, tensor, dtypes in (
        ("page_ids", page_ids, (torch.int32, torch.int64)),
        ("status", status, (torch.int32,)),
    ):
        if tensor.dtype not in dtypes or tensor.shape != (len(frames),) or not tensor.is_contiguous():
            raise ValueError(
                f"expected {what} of {' or '.join(map(_name, dtypes))}, contiguous, one for each of {len(frames)} "
                f"slots, got {tensor.dtype}, shape {tuple(tensor.shape)}"
            )
    odd = frames.data_ptr() % _ALIGNMENT or (len(frames) > 1 and frames.stride(0) % _ALIGNMENT)
    if odd or pool.data_ptr() % _ALIGNMENT:
        raise ValueError(
            f"expected slots and pool at multiples of {_ALIGNMENT} bytes, got slots at {frames.data_ptr():#x}, "
            f"{frames.stride(0)} bytes from one to the next, and the pool at {pool.data_ptr():#x}"
        )
    for tensor in (frames, page_ids, status):
        if tensor.device != pool.device:
            raise ValueError(f"expected all tensors on the pool's device, got {tensor.device} and {pool.device}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
