"""Several tensors in one message, each with a codec of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....errors import CorruptDataError, TruncatedDataError
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

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor:
        lengths, payloads = [], []
        for place, ((_, codec), part) in enumerate(zip(self.parts, self._split(tensor), strict=True)):
            payload = codec.encode(part, None, hash((key, place)))
            payload = None if payload is None or payload.numel() >= part.nbytes else payload
            lengths.append(-part.nbytes if payload is None else payload.numel())
            payloads.append(bytes_of(part) if payload is None else payload)
        return torch.cat([bytes_of(torch.tensor(lengths)), *payloads])

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        numbers = 8 * len(self.parts)
        if message.numel() < numbers:
            raise TruncatedDataError(f"expected the lengths of {len(self.parts)} parts, got {message.numel()} bytes")
        lengths = message[:numbers].clone().view(torch.int64).tolist()
        nbytes = sum(map(abs, lengths))
        if nbytes != message.numel() - numbers:
            raise CorruptDataError(f"expected parts of {nbytes} bytes, got {message.numel() - numbers}")
        payloads = message[numbers:].split([abs(length) for length in lengths])
        for (_, codec), payload, length, part in zip(self.parts, payloads, lengths, self._split(out), strict=True):
            self._decode(codec if length > 0 else None, payload.clone(), part)

    def _decode(self, codec: Codec | None, payload: Tensor, part: Tensor) -> None:
        """Fill a part of what may have another dtype than `self.dtype`: sums are of FP32. Only lossy codecs decode to
        any dtype."""
        if codec is None:
            if payload.numel() != part.numel() * self.dtype.itemsize:
                raise CorruptDataError(f"expected {part.numel()} elements of {self.dtype}, got {payload.numel()} bytes")
            part.copy_(payload.view(self.dtype))
        elif codec.lossless:
            restored = torch.empty_like(part, dtype=self.dtype)
            codec.decode(payload, restored)
            part.copy_(restored)
        else:
            codec.decode(payload, part)

    def _split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.split([numel for numel, _ in self.parts]))
