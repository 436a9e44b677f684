"""FP8 with a scale for each group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from ....errors import FormatError
from .grid import check_hadamard, from_groups, in_groups

if TYPE_CHECKING:
    from torch import Tensor

_FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
_SCALE_NBYTES = 4


@dataclass(frozen=True)
class Float8:
    """Each element as FP8, an FP32 scale for each group, whose largest element becomes the largest number.

    TACO (arXiv 2604.24088) without its first scale, which changes no code but ties: a scale before a linear transform
    is undone by the scale behind it. A group with NaN or an infinity becomes NaN.

    Attributes:
        format: "e4m3" or "e5m2".
        group: elements that share a scale; a multiple of `hadamard`.
        hadamard: elements that an orthonormal Hadamard transform mixes first, a power of two; 0 for none.
    """

    format: Literal["e4m3", "e5m2"] = "e4m3"
    group: int = 128
    hadamard: int = 0
    lossless = False

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise ValueError(f"expected format 'e4m3' or 'e5m2', got {self.format!r}")
        if self.group < 1:
            raise ValueError(f"expected a group of at least one element, got {self.group}")
        check_hadamard(self.hadamard, self.group)

    def nbytes(self, numel: int) -> int:
        return -(-numel // self.group) * (_SCALE_NBYTES + self.group)

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor:
        values = tensor.float() if base is None else tensor.float() - base.float()
        groups = in_groups(values, self.group, self.hadamard)
        dtype = _FORMATS[self.format]
        scales = groups.abs().amax(1, keepdim=True) / torch.finfo(dtype).max
        codes = (groups / scales.masked_fill(scales == 0, 1.0)).nan_to_num_().to(dtype)
        return torch.cat([scales.view(-1).view(torch.uint8), codes.view(-1).view(torch.uint8)])

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        if message.numel() != self.nbytes(out.numel()):
            raise FormatError(f"expected {self.nbytes(out.numel())} bytes of {self}, got {message.numel()}")
        count = -(-out.numel() // self.group)
        scales = message[: count * _SCALE_NBYTES].clone().view(torch.float32)
        codes = message[count * _SCALE_NBYTES :].view(_FORMATS[self.format])
        groups = codes.float().view(count, self.group) * scales.view(-1, 1)
        values = from_groups(groups, out.numel(), self.hadamard)
        out.copy_(values if base is None else base.float() + values)
