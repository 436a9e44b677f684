"""The tensors of calls that encode or decode pages, checked: kernels trust what is checked here."""

from __future__ import annotations

import torch

from ....codec import address_of
from .given import check_tensor
from .operands import ALIGNMENT

RUN = 256  # words
_MOST_STRIDE = 1 << 32


def check_tensors(
    pool: torch.Tensor, page_ids: torch.Tensor, page_words: int, dtype: torch.dtype, *,
    least_nbytes: int = 0, **others: torch.Tensor,
) -> None:  # fmt: skip
    """Raise ValueError unless pool, numbers of pages, slots and what is told of each slot go together, TypeError for
    what is no tensor, and UnsupportedTensorError for a pool without memory of its own.

    Args:
        least_nbytes: of a slot.
        others: the slots, and what is told of them, by the names of the caller's parameters.
    """
    (slots_name, slots), (told_name, told) = others.items()
    named = {"pool": pool, "page_ids": page_ids, **others}
    for name, tensor in named.items():
        check_tensor(name, tensor)
    address_of(pool)  # it has one
    if pool.dtype != dtype or pool.dim() < 1 or not pool.is_contiguous() or pool.numel() != len(pool) * page_words:
        raise ValueError(
            f"expected a contiguous pool of pages of {page_words} elements of {dtype}, got {pool.dtype}, shape "
            f"{tuple(pool.shape)}, strides {pool.stride()}"
        )
    count = len(slots) if slots.dim() else 0
    in_rows = slots.dtype == torch.uint8 and slots.dim() == 2 and (count == 0 or slots.stride(1) == 1)
    if not in_rows or slots.shape[1] < least_nbytes:
        raise ValueError(
            f"expected {slots_name} of uint8 in rows, a slot of {least_nbytes} bytes or more each, got {slots.dtype}, "
            f"shape {tuple(slots.shape)}, strides {slots.stride()}"
        )
    if count > 1 and not slots.shape[1] <= slots.stride(0) < _MOST_STRIDE:
        raise ValueError(f"expected slots that do not overlap, less than 4 GiB apart, got strides {slots.stride()}")
    odd = slots.data_ptr() % ALIGNMENT or (count > 1 and slots.stride(0) % ALIGNMENT)
    if slots.device.type != "cpu" and odd:
        raise ValueError(
            f"expected slots at multiples of {ALIGNMENT} bytes, got the first at {slots.data_ptr():#x} and "
            f"{slots.stride(0)} bytes from one to the next; {up_to(slots.shape[1], ALIGNMENT)} bytes a slot are right"
        )
    for what, tensor, dtypes in (
        ("page_ids", page_ids, (torch.int32, torch.int64)),
        (told_name, told, (torch.int32,)),
    ):
        if tensor.dtype not in dtypes or tensor.shape != (count,) or not tensor.is_contiguous():
            raise ValueError(
                f"expected {what} of {' or '.join(map(str, dtypes))}, contiguous, one for each of {count} slots, got "
                f"{tensor.dtype}, shape {tuple(tensor.shape)}"
            )
    for name, tensor in named.items():
        if tensor.device != pool.device:
            raise ValueError(f"expected {name} on {pool.device}, as the pool is, got it on {tensor.device}")


def up_to(nbytes: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-nbytes // unit) * unit
