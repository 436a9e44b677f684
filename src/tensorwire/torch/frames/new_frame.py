"""The frame of a dense tensor, made where the tensor is: on a device by kernels, if they can, else by the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ...codec import compress
from .open_frame import Origin, attach

if TYPE_CHECKING:
    from torch import Tensor

    from ...codec import Profile

_encode_on_device: Callable[[Tensor, Profile], Tensor | None] | None = None


def encode_on_devices_by(factory: Callable[[Tensor, Profile], Tensor | None]) -> None:
    """Let `factory` make the frames of tensors that do not lie on the CPU. It gives None for what the core must do."""
    global _encode_on_device
    _encode_on_device = factory


def new_frame(tensor: Tensor, profile: Profile) -> Tensor:
    """The frame, in memory of exactly its size: on the tensor's device if it was made there, else on the CPU.

    Raises:
        UnsupportedTensorError, ValueError: as `compress`.
    """
    tensor = tensor.detach()
    if tensor.device.type != "cpu" and _encode_on_device is not None:
        found = _encode_on_device(tensor, profile)
        if found is not None:
            return found
    # One copy, into memory that torch owns.
    frame = torch.frombuffer(bytearray(compress(tensor.cpu(), profile=profile)), dtype=torch.uint8)
    return attach(frame, Origin(verify=False))
