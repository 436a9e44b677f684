"""Codes of few bits, and a scale for each group of elements: what `Grid` and `Float8` have in common."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from ....errors import CorruptDataError, TruncatedDataError
from ..arguments import expect_integer

if TYPE_CHECKING:
    from torch import Tensor

_SCALE_NBYTES = 4


class Grouped:
    """Symmetric quantization. The FP32 scale of a group takes its largest element to the largest code.

    The message has the scales of all groups and then their codes; the last group is filled up with zeros. A group with
    NaN or an infinity has a scale that makes all of it NaN. Every other group stays finite.
    """

    lossless = False
    group: int
    hadamard: int

    def __post_init__(self) -> None:
        block = self.hadamard
        expect_integer("hadamard", block)
        if block and (block < 2 or block & block - 1 or self.group % block):
            raise ValueError(f"expected hadamard to be 0 or a power of two that divides {self.group}, got {block}")

    @property
    def _bits(self) -> int:
        """How many a code has."""
        raise NotImplementedError

    @property
    def _most(self) -> float:
        """The largest code."""
        raise NotImplementedError

    def _packed(self, scaled: Tensor, key: int) -> Tensor:
        """The nearest codes, as uint8."""
        raise NotImplementedError

    def _unpacked(self, packed: Tensor) -> Tensor:
        """The codes as FP32.

        Raises:
            FormatError: `_packed` never makes such codes.
        """
        raise NotImplementedError

    def nbytes(self, numel: int) -> int:
        """Bytes of the message of so many elements."""
        return -(-numel // self.group) * (_SCALE_NBYTES + self.group * self._bits // 8)

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor:
        values = tensor.float() if base is None else tensor.float() - base.float()
        padded = torch.nn.functional.pad(values, (0, -values.numel() % self.group))
        if self.hadamard:
            padded = hadamard(padded.view(-1, self.hadamard) / self.hadamard)
        groups = padded.view(-1, self.group)
        scales = groups.abs().amax(1, keepdim=True) / self._most
        scaled = (groups / scales).nan_to_num_()  # a group of zeros, and one whose scale is NaN or infinite: codes of 0
        return torch.cat([scales.view(-1).view(torch.uint8), self._packed(scaled.view(-1), key)])

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        numel, expected = out.numel(), self.nbytes(out.numel())
        if message.numel() != expected:
            error = TruncatedDataError if message.numel() < expected else CorruptDataError
            raise error(f"expected {expected} bytes of {self}, got {message.numel()}")
        count = -(-numel // self.group)
        scales = message[: count * _SCALE_NBYTES].clone().view(torch.float32)
        values = self._unpacked(message[count * _SCALE_NBYTES :]).view(count, self.group) * scales.view(-1, 1)
        if self.hadamard:
            values = hadamard(values.view(-1, self.hadamard))
        flat = values.view(-1)[:numel]
        if base is not None:
            flat += base.float()
        most = min(torch.finfo(dtype).max for dtype in (out.dtype, flat.dtype))
        out.copy_(flat.clamp_(-most, most))  # rounding takes no finite number to an infinity; NaN stays NaN


def hadamard(rows: Tensor) -> Tensor:
    """The Walsh-Hadamard transform of each row. With a division by the size of rows it is its own inverse.

    It is a product in FP64, whose result does not depend on the order of the sums or on
    `torch.set_float32_matmul_precision`, but for rare ties.
    """
    return (rows.double() @ _matrix(rows.shape[1])).float()


@cache
def _matrix(size: int) -> Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix
