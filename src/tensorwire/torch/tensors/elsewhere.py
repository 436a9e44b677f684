"""Compressed tensors whose frame is in memory of the host, while they show themselves on a device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NO_ADDRESS = 1 << 62
"""Set in a number that is no address of memory."""


class _Pickling(threading.local):
    now = False


pickling = _Pickling()
"""Whether torch asks for what a tensor is made of, to pickle it."""


class Elsewhere(Protocol):
    """What brings the values of a frame in host memory to the device that the tensor shows."""

    device: torch.device

    def decode(self) -> Tensor:
        """All values, in new memory of the device."""

    def part(self, shape: Sequence[int], first: int) -> Tensor:
        """`shape` values from value `first` on."""

    def rows(self, indices: Tensor) -> Tensor:
        """The rows at these indices."""

    def linear(self, x: Tensor, bias: Tensor | None, mode: str) -> Tensor:
        """`torch.nn.functional.linear` with the tensor as the weight."""


def home_of(tensor: Any) -> torch.device | None:
    """Where a copy of its frame belongs; None where the frame is."""
    return None if tensor._elsewhere is None else tensor.device


def check_not_offloaded(tensor: Any, what: str) -> None:
    if tensor._elsewhere is not None:
        raise RuntimeError(
            f"a weight of shape {tuple(tensor.shape)} that is offloaded cannot be {what}: close what "
            "tensorwire.torch.offload has returned, which brings the model back to the host, or take its decode()"
        )
