"""How a tensor stands in a safetensors file, where that has no dtype or shape of torch's."""

from __future__ import annotations

import torch

from ...codec import FROM_TORCH
from ...errors import UnsupportedTensorError

_FP4 = getattr(torch, "float4_e2m1fn_x2", None)  # which older versions lack


def form_of(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape in the file. An element of torch's FP4 is two of F4, and complex128 is pairs of F64.

    Raises:
        UnsupportedTensorError: no safetensors file holds this dtype.
    """
    if tensor.dtype == torch.complex128:
        return "F64", (*tensor.shape, 2)
    dtype = FROM_TORCH.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise UnsupportedTensorError(f"no safetensors file holds {tensor.dtype}")
    if tensor.dtype == _FP4:
        *rows, last = tensor.shape or (1,)
        return dtype, (*rows, 2 * last)
    return dtype, tuple(tensor.shape)


def to_form(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor to be written, on the CPU."""
    tensor = tensor.cpu().contiguous()
    if tensor.dtype == torch.complex128:
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(1) if tensor.dtype == _FP4 and not tensor.ndim else tensor


def from_form(found: torch.Tensor, dtype: torch.dtype, ndim: int) -> torch.Tensor:
    """A tensor or a part of one as torch has it, out of what a file has; `dtype` and `ndim` are torch's."""
    if dtype == torch.complex128 and found.dtype == torch.float64 and found.shape[-1:] == (2,):
        return torch.view_as_complex(found.contiguous())
    return found.reshape(()) if dtype == _FP4 and not ndim and found.shape == (1,) else found
