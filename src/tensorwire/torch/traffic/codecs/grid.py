"""Integers of few bits on a grid that each group of elements scales by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from ....errors import FormatError

if TYPE_CHECKING:
    from torch import Tensor

_SCALE_NBYTES = 4


@dataclass(frozen=True)
class Grid:
    """Symmetric quantization: codes from -(2^(bits-1) - 1) to 2^(bits-1) - 1, and an FP32 scale for each group.

    The quantizer of SDP4Bit (arXiv 2410.15526): its weights are `Grid(4, 2048)` relative to a base, its gradients
    `Grid(8, 128, hadamard=32)` within a node and `Grid(4, 128, hadamard=32)` between nodes, all of them with stochastic
    rounding. A group with NaN or an infinity becomes NaN.

    Attributes:
        bits: of a code, 2 to 8. Codes are packed.
        group: elements that share a scale; a multiple of `hadamard` and of 8.
        hadamard: elements that an orthonormal Hadamard transform mixes first, a power of two; 0 for none. It spreads
            outliers over the block.
        rounding: "nearest", or "stochastic", which is right on average and has 1.41 times the error.
    """

    bits: int
    group: int
    hadamard: int = 0
    rounding: Literal["nearest", "stochastic"] = "nearest"
    lossless = False

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise ValueError(f"expected 2 to 8 bits, got {self.bits}")
        if self.group < 8 or self.group % 8:
            raise ValueError(f"expected a group that is a multiple of 8, got {self.group}")
        check_hadamard(self.hadamard, self.group)
        if self.rounding not in ("nearest", "stochastic"):
            raise ValueError(f"expected rounding 'nearest' or 'stochastic', got {self.rounding!r}")

    def nbytes(self, numel: int) -> int:
        groups = -(-numel // self.group)
        return groups * (_SCALE_NBYTES + self.group * self.bits // 8)

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor:
        values = tensor.float() if base is None else tensor.float() - base.float()
        groups = in_groups(values, self.group, self.hadamard)
        most = (1 << self.bits - 1) - 1
        scales = groups.abs().amax(1, keepdim=True) / most
        scaled = groups / scales.masked_fill(scales == 0, 1.0)
        if self.rounding == "stochastic":
            scaled = (scaled + torch.rand(scaled.shape, generator=torch.Generator().manual_seed(key))).floor()
        codes = scaled.nan_to_num_().round_().clamp_(-most, most).to(torch.int16) + most
        return torch.cat([scales.view(-1).view(torch.uint8), pack(codes.view(-1), self.bits)])

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        if message.numel() != self.nbytes(out.numel()):
            raise FormatError(f"expected {self.nbytes(out.numel())} bytes of {self}, got {message.numel()}")
        count = -(-out.numel() // self.group)
        scales = message[: count * _SCALE_NBYTES].clone().view(torch.float32)
        most = (1 << self.bits - 1) - 1
        codes = unpack(message[count * _SCALE_NBYTES :], self.bits)
        if codes.numel() and int(codes.max()) > 2 * most:
            raise FormatError(f"expected codes up to {2 * most}, got {int(codes.max())}")
        groups = (codes - most).float().view(count, self.group) * scales.view(-1, 1)
        values = from_groups(groups, out.numel(), self.hadamard)
        out.copy_(values if base is None else base.float() + values)


def check_hadamard(block: int, group: int) -> None:
    if block and (block < 2 or block & block - 1 or group % block):
        raise ValueError(f"expected hadamard to be 0 or a power of two that divides {group}, got {block}")


def in_groups(values: Tensor, group: int, block: int) -> Tensor:
    """Rows of `group` elements, the last one filled up with zeros, each block of them transformed."""
    padded = torch.nn.functional.pad(values.reshape(-1), (0, -values.numel() % group))
    return hadamard(padded.view(-1, block)).view(-1, group) if block and padded.numel() else padded.view(-1, group)


def from_groups(groups: Tensor, numel: int, block: int) -> Tensor:
    values = hadamard(groups.view(-1, block)) if block and groups.numel() else groups
    return values.reshape(-1)[:numel]


def hadamard(rows: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of each row, which is its own inverse."""
    count, size = rows.shape
    step = 1
    while step < size:
        pairs = rows.view(count, size // (2 * step), 2, step)
        rows = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), 2).view(count, size)
        step *= 2
    return rows * size**-0.5


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
