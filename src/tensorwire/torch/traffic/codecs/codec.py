"""What a codec does, and the one that does nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Codec(Protocol):
    """Frozen and equal by value, so that ranks can compare theirs. Thread-safe."""

    @property
    def lossless(self) -> bool: ...

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor | None:
        """The message as uint8 of one dimension; None if the bytes of the tensor are to travel as they are.

        Args:
            tensor: contiguous, of one dimension. The message is where it is.
            base: what the receivers hold, of the same size and dtype.
            key: of the random numbers: the same key gives the same message.
        """

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        """Fill `out`. `base` may be its very memory.

        Raises:
            FormatError: the message is not one of this codec for such a tensor.
        """


@dataclass(frozen=True)
class Raw:
    """The bytes as they are: what the other codecs are compared with.

    Attributes:
        measured: the ranks meet before the bytes travel, so that the time says something of the link.
        direct: torch may send them itself, as it would without us.
    """

    measured: bool = field(default=False, repr=False)
    direct: bool = field(default=False, repr=False)
    lossless = True

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor | None:
        return None

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        raise NotImplementedError("raw messages are copied")


def bytes_of(tensor: Tensor) -> Tensor:
    """Its memory as uint8."""
    return tensor.reshape(-1).view(torch.uint8)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Also of NaNs."""
    return bool(torch.equal(bytes_of(one), bytes_of(other)))
