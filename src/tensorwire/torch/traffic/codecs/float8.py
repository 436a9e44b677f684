"""FP8 with a scale for each group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from ....errors import CorruptDataError
from ..arguments import expect_integer
from .grouped import Grouped

if TYPE_CHECKING:
    from torch import Tensor

_FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class Float8(Grouped):
    """Each element as FP8, an FP32 scale for each group, whose largest element becomes the largest number.

    TACO (arXiv 2604.24088) without its first scale, which changes no code but ties: a scale before a linear transform
    is undone by the scale behind it. A group with NaN or an infinity becomes NaN.

    Attributes:
        format: "e4m3" or "e5m2".
        group: elements that share a scale; a multiple of `hadamard`.
        hadamard: elements that a Hadamard transform mixes first, a power of two; 0 for none.
    """

    format: Literal["e4m3", "e5m2"] = "e4m3"
    group: int = 128
    hadamard: int = 0

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise ValueError(f"expected format 'e4m3' or 'e5m2', got {self.format!r}")
        expect_integer("group", self.group)
        if self.group < 1:
            raise ValueError(f"expected a group of at least one element, got {self.group}")
        super().__post_init__()

    @property
    def _bits(self) -> int:
        return 8

    @property
    def _most(self) -> float:
        return float(torch.finfo(_FORMATS[self.format]).max)

    def _packed(self, scaled: Tensor, key: int) -> Tensor:
        return scaled.clamp_(-self._most, self._most).to(_FORMATS[self.format]).view(torch.uint8)

    def _unpacked(self, packed: Tensor) -> Tensor:
        # The codes of infinity and NaN are the ones behind that of the largest number.
        largest = torch.tensor(self._most).to(_FORMATS[self.format]).view(torch.uint8)
        if packed.numel() and (packed & 127).max() > largest:
            raise CorruptDataError(f"expected finite codes of {self}, got NaN or an infinity")
        return packed.view(_FORMATS[self.format]).float()
