"""What decodes frames on a device, and what makes kernels for it: ``tensorwire doctor`` tells and tries it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from .binaries import cache_folder
from .frame import DeviceFrame
from .nvidia import driver_for
from .nvrtc import compiler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor


class CompilerFacts(NamedTuple):
    """NVRTC as it was found.

    Attributes:
        version: None if it was not found.
        place: the path or the name by which it was found, or why it was not.
        folder: where compiled kernels are kept; None without a home directory.
    """

    version: str | None
    place: str
    folder: Path | None


def engines(device: torch.device) -> dict[str, Callable[[Tensor], Tensor]]:
    """What decodes a frame there, by name: kernels in CUDA C++, and Triton's. What cannot run there is left out."""
    found: dict[str, Callable[[Tensor], Tensor]] = {}
    driver = driver_for(device)
    if driver is not None:
        found["CUDA C++"] = lambda frame: DeviceFrame(frame, driver).decode_all()
    try:
        from .triton import decode  # noqa: F401 - raises where Triton is missing or too old
    except ImportError:
        return found
    found["Triton"] = lambda frame: DeviceFrame(frame, None).decode_all()
    return found


def compiler_facts() -> CompilerFacts:
    """NVRTC for the CUDA of this torch."""
    try:
        folder = cache_folder()
    except (OSError, RuntimeError):
        folder = None
    try:
        found = compiler(torch.version.cuda)
    except OSError as error:
        return CompilerFacts(None, str(error), folder)
    return CompilerFacts(".".join(map(str, found.version)), found.place, folder)
