"""The first GPU, as far as torch can use it, for ``tensorwire doctor``: what decodes there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from ..errors import UnsupportedTensorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .proof import Engine


def find() -> dict[str, Engine]:
    """The engines that decode on the first GPU, by name; nothing where torch can use no GPU, or Triton is missing."""
    if not torch.cuda.is_available():
        return {}
    try:
        from ..torch.device import decode_frame
    except ImportError:
        return {}
    return {"Triton": partial(decoded, decode_frame, torch.device("cuda", 0))}


def decoded(engine: Callable[[torch.Tensor], torch.Tensor], device: torch.device, frame: bytes) -> bytes | None:
    """The content of a frame as an engine decodes it on a device; None if torch lacks the dtype."""
    memory = torch.empty(len(frame), dtype=torch.uint8, device=device)
    memory.copy_(torch.frombuffer(bytearray(frame), dtype=torch.uint8))
    try:
        tensor = engine(memory)
    except UnsupportedTensorError:
        return None
    return bytes(tensor.cpu().reshape(-1).view(torch.uint8).numpy())
