"""What kernels take: dtypes, by their names in the format, and where tensors have to lie."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ....codec import FROM_TORCH

ALIGNMENT = 16
"""Bytes: tensors, frames and slots begin at such multiples."""


class Coding(NamedTuple):
    """How tensors of a dtype are encoded.

    Attributes:
        name: of the dtype in the format.
        layout: of its words, as kernels call it.
        bits, fast_bits: of a word in a block: in profile resident without escapes, in profile fast usually.
    """

    name: str
    layout: str
    bits: int
    fast_bits: int


CODINGS = {
    torch.bfloat16: Coding("BF16", "Bf16", 12, 11),
    torch.float16: Coding("F16", "F16", 14, 14),
    torch.float8_e4m3fn: Coding("F8_E4M3", "F8E4M3", 7, 7),
    torch.float8_e5m2: Coding("F8_E5M2", "F8E5M2", 6, 6),
}


def dtype_name(tensor: torch.Tensor) -> str | None:
    """The name of a tensor's dtype in the format; None for one that safetensors does not have."""
    return FROM_TORCH.get(str(tensor.dtype).removeprefix("torch."))


def placed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as kernels read it: a copy, unless it is contiguous and at a multiple of ALIGNMENT bytes."""
    tensor = tensor.detach().contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
