"""Integers of few bits on a grid that each group of elements scales by itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Literal

import torch

from ....errors import CorruptDataError
from ..arguments import expect_integer
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
        expect_integer("bits", self.bits)
        expect_integer("group", self.group)
        if not 2 <= self.bits <= 8:
            raise ValueError(f"expected 2 to 8 bits, got {self.bits}")
        if self.group < 8 or self.group % 8:
            raise ValueError(f"expected a group that is a multiple of 8, got {self.group}")
        if self.rounding not in ("nearest", "stochastic"):
            raise ValueError(f"expected rounding 'nearest' or 'stochastic', got {self.rounding!r}")
        super().__post_init__()

    @property
    def _bits(self) -> int:
        return self.bits

    @property
    def _most(self) -> int:
        return (1 << self.bits - 1) - 1

    def _packed(self, scaled: Tensor, key: int) -> Tensor:
        if self.rounding == "stochastic":
            scaled = (scaled + torch.rand(scaled.shape, generator=torch.Generator().manual_seed(key))).floor_()
        codes = scaled.round_().clamp_(-self._most, self._most).add_(self._most)
        return pack(codes.to(torch.uint8), self.bits)

    def _unpacked(self, packed: Tensor) -> Tensor:
        codes = unpack(packed, self.bits)
        if codes.numel() and int(codes.max()) > 2 * self._most:
            raise CorruptDataError(f"expected codes up to {2 * self._most} of {self}, got {int(codes.max())}")
        return codes.float().sub_(self._most)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Numbers below 2^bits, a multiple of 8 of them, as a row of bits: the first one and its lowest bit first."""
    columns, num_bytes = _unit(bits)
    rows = codes.view(-1, columns)
    packed = torch.zeros(len(rows), num_bytes, dtype=torch.uint8)
    for i in range(columns):
        byte, shift = divmod(i * bits, 8)
        packed[:, byte] |= rows[:, i] << shift
        if shift + bits > 8:
            packed[:, byte + 1] |= rows[:, i] >> 8 - shift
    return packed.view(-1)


def unpack(packed: Tensor, bits: int) -> Tensor:
    columns, num_bytes = _unit(bits)
    rows = packed.view(-1, num_bytes)
    codes = torch.empty(len(rows), columns, dtype=torch.uint8)
    for i in range(columns):
        byte, shift = divmod(i * bits, 8)
        code = rows[:, byte] >> shift
        if shift + bits > 8:
            code |= rows[:, byte + 1] << 8 - shift
        codes[:, i] = code & (1 << bits) - 1
    return codes.view(-1)


def _unit(bits: int) -> tuple[int, int]:
    """The fewest numbers that fill whole bytes, and how many these are."""
    shared = gcd(8, bits)
    return 8 // shared, bits // shared
