"""Pages read: frames of one page each, decoded into a pool in place, on a device with all checks by one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....codec import DEFAULT_ALIGNMENT, byte_view, decompress, frame_info
from ....errors import FormatError
from ..cuda_kernels import PackedKernel
from ..driver import Kernel
from .operands import ALIGNMENT, CODINGS
from .page_tensors import RUN, check_tensors
from .status import Status, status_of

if TYPE_CHECKING:
    import torch

    from ..driver import Driver

_THREADS = 256
_MOST_NBYTES = 1 << 31  # of a slot, that is looked at


def decode_pages(
    frames: torch.Tensor, pool: torch.Tensor, page_ids: torch.Tensor, status: torch.Tensor, page_words: int,
    dtype: torch.dtype, driver: Driver | None,
) -> None:  # fmt: skip
    """Decode a frame of each slot into the page of the pool that has its number: `DevicePages.decode`.

    Args:
        driver: that of the tensors' device; None: they are on the CPU, where the core decodes.

    Raises:
        ValueError: a tensor has another dtype, shape, place or device than is expected.
    """
    check_tensors(pool, page_ids, page_words, dtype, frames=frames, status=status)
    if not len(frames):
        return
    pool = pool.detach()
    frames = frames[:, : min(frames.shape[1], _MOST_NBYTES) // DEFAULT_ALIGNMENT * DEFAULT_ALIGNMENT]
    coding = CODINGS[dtype]
    if driver is None:
        for place, (slot, page) in enumerate(zip(frames, page_ids.tolist(), strict=True)):
            inside = 0 <= page < len(pool)
            status[place] = _decode_slot(slot, pool[page], coding.name) if inside else Status.ANOTHER_TENSOR
        return
    whole = page_words % RUN == 0 and pool.data_ptr() % ALIGNMENT == 0
    kernel = Kernel("unpage.cuh", f"unpage<{coding.layout}, {str(whole).lower()}>")
    packed = PackedKernel(
        driver, kernel, _THREADS, frames=frames, stride=frames.stride(0), slot_nbytes=frames.shape[1],
        page_ids=page_ids, id_nbytes=page_ids.element_size(), pool=pool, num_pages=len(pool), page_words=page_words,
        status=status,
    )  # fmt: skip
    packed.launch(driver.stream(), len(frames))


def _decode_slot(slot: torch.Tensor, page: torch.Tensor, name: str) -> Status:
    """By the core. The page is written only if all of the frame is right."""
    try:
        info = frame_info(slot)
        if (info.dtype, info.bits, info.uncompressed_nbytes) != (name, 8 * page.element_size(), page.nbytes):
            return Status.ANOTHER_TENSOR
        if info.base_hash is not None:
            return Status.BASE_MISMATCH
        content = decompress(slot, framework="bytes")
    except FormatError as error:
        return status_of(error)
    byte_view(page, writable=True).data[:] = content
    return Status.DONE
