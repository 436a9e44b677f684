"""How a tensor stands in a safetensors file, where that has no dtype or shape of torch's."""

from __future__ import annotations

import torch

from ...checkpoint.directory.distributed import stored_form

_FP4 = getattr(torch, "float4_e2m1fn_x2", None)  # which older versions lack


def form_of(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape in the file. Errors are those of `stored_form`."""
    return stored_form(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


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
