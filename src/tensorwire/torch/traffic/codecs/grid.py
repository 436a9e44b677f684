"""Integers of few bits on a grid that each group of elements scales by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from ....errors import CorruptDataError
from .grouped import Grouped

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Grid(Grouped):
    """Symmetric quantization: codes from -(2^(bits-1) - 1) to 2^(bits-1) - 1, and an FP32 scale for each group.

    The quantizer of SDP4Bit (arXiv 2410.15526): its weights are `Grid(4, 2048)` relative to a base, its gradients
    `Grid(8, 128, hadamard=32)` within a node and `Grid(4, 128, hadamard=32)` between nodes, all of them with stochastic
    rounding. A group with NaN or an infinity becomes NaN.

    Attributes:
        bits: of a code, 2 to 8. Codes are packed.
        group: elements that share a scale; a multiple of `hadamard` and of 8.
        hadamard: elements that a Hadamard transform mixes first, a power of two; 0 for none. It spreads outliers over
            the block.
        rounding: "nearest", or "stochastic", which is right on average and has 1.41 times the error.
    """

    bits: int
    group: int
    hadamard: int = 0
    rounding: Literal["nearest", "stochastic"] = "nearest"

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise ValueError(f"expected 2 to 8 bits, got {self.bits}")
        if self.group < 8 or self.group % 8:
            raise ValueError(f"expected a group that is a multiple of 8, got {self.group}")
        if self.rounding not in ("nearest", "stochastic"):
            raise ValueError(f"expected rounding 'nearest' or 'stochastic', got {self.rounding!r}")
        super().__post_init__()

    @property
    def _most(self) -> int:
        return (1 << self.bits - 1) - 1

    def _packed(self, scaled: Tensor, key: int) -> Tensor:
        if self.rounding == "stochastic":
            scaled = (scaled + torch.rand(scaled.shape, generator=torch.Generator().manual_seed(key))).floor_()
        return pack(scaled.round_().clamp_(-self._most, self._most).to(torch.int16) + self._most, self.bits)

    def _unpacked(self, packed: Tensor) -> Tensor:
        codes = unpack(packed, self.bits)
        if codes.numel() and int(codes.max()) > 2 * self._most:
            raise CorruptDataError(f"expected codes up to {2 * self._most} of {self}, got {int(codes.max())}")
        return (codes - self._most).float()


def pack(codes: Tensor, bits: int) -> Tensor:
    """Numbers below 2^bits, a multiple of 8 of them, as bytes: eight numbers in `bits` bytes, the first one lowest."""
    if bits == 8:
        return codes.to(torch.uint8)
    rows = codes.view(-1, 8).long()
    word = (rows << torch.arange(0, 8 * bits, bits)).sum(1, keepdim=True)
    return (word >> torch.arange(0, 8 * bits, 8) & 255).to(torch.uint8).view(-1)


def unpack(packed: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return packed.to(torch.int16)
    word = (packed.view(-1, bits).long() << torch.arange(0, 8 * bits, 8)).sum(1, keepdim=True)
    return (word >> torch.arange(0, 8 * bits, bits) & (1 << bits) - 1).to(torch.int16).view(-1)
