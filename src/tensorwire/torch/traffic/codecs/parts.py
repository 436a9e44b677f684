"""Several tensors in one message, each with a codec of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....errors import TruncatedDataError
from .codec import Codec, bytes_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parts:
    """Elements one behind the other: so many for each codec. Lengths (8 bytes each) travel before the messages.

    A part that its codec does not make smaller travels raw, and its length is negative then.
    """

    parts: tuple[tuple[int, Codec], ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return " ".join(sorted({str(codec) for _, codec in self.parts}))

    @property
    def lossless(self) -> bool:
        return all(codec.lossless for _, codec in self.parts)

    def nbytes(self, numel: int) -> int | None:
        return None

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor:
        lengths, payloads = [], []
        for (_, codec), part in zip(self.parts, self._split(tensor), strict=True):
            payload = codec.encode(part, None, key)
            lengths.append(-part.nbytes if payload is None else payload.numel())
            payloads.append(bytes_of(part) if payload is None else payload)
        return torch.cat([bytes_of(torch.tensor(lengths)), *payloads])

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        numbers = 8 * len(self.parts)
        if message.numel() < numbers:
            raise TruncatedDataError(f"expected the lengths of {len(self.parts)} parts, got {message.numel()} bytes")
        lengths = message[:numbers].clone().view(torch.int64).tolist()
        if sum(map(abs, lengths)) != message.numel() - numbers:
            raise TruncatedDataError(
                f"expected parts of {sum(map(abs, lengths))} bytes, got {message.numel() - numbers}"
            )
        payloads = message[numbers:].split([abs(length) for length in lengths])
        for (_, codec), payload, length, part in zip(self.parts, payloads, lengths, self._split(out), strict=True):
            if length < 0:
                part.copy_(payload.clone().view(self.dtype))
            else:
                codec.decode(payload.clone(), part)

    def _split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.split([numel for numel, _ in self.parts]))
