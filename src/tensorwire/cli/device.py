"""The first GPU, as far as torch can use it, for ``tensorwire doctor``: what decodes there, and NVRTC."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..errors import UnsupportedTensorError
from ..torch.device.engines import compiler_facts, engines
from .machine import Nvrtc, public

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .proof import Engine


def find() -> tuple[dict[str, Engine], Nvrtc | None]:
    """The engines that decode on the first GPU, by name, and NVRTC if it is one of NVIDIA's; nothing where torch can
    use no GPU."""
    if not torch.cuda.is_available():
        return {}, None
    device = torch.device("cuda", 0)
    found: dict[str, Engine] = {name: partial(decoded, engine, device) for name, engine in engines(device).items()}
    return found, nvrtc() if torch.version.hip is None else None


def nvrtc() -> Nvrtc:
    """NVRTC as it was found."""
    facts = compiler_facts()
    if facts.folder is None:
        return Nvrtc(facts.version, _place(facts.place), None, writable=False)
    root = "$XDG_CACHE_HOME" if os.environ.get("XDG_CACHE_HOME", "").startswith("/") else "~/.cache"
    folder = "/".join((root, *facts.folder.parts[-2:]))
    return Nvrtc(facts.version, _place(facts.place), folder, _writable(facts.folder))


def decoded(engine: Callable[[torch.Tensor], torch.Tensor], device: torch.device, frame: bytes) -> bytes | None:
    """The content of a frame as an engine decodes it on a device; None if torch lacks the dtype."""
    memory = torch.empty(len(frame), dtype=torch.uint8, device=device)
    memory.copy_(torch.frombuffer(bytearray(frame), dtype=torch.uint8))
    try:
        tensor = engine(memory)
    except UnsupportedTensorError:
        return None
    return bytes(tensor.cpu().reshape(-1).view(torch.uint8).numpy())


def _place(text: str) -> str:
    """A path from the folder of packages on, or whole where it is the system's; else as `public` has it."""
    _, packages, rest = text.partition("site-packages/")
    if rest and " " not in text:
        return packages + rest
    return text if text.startswith(("/usr/", "/opt/")) and " " not in text else public(text)


def _writable(directory: Path) -> bool:
    """Whether files can be made there, or in the nearest directory above that exists."""
    try:
        existing = next(place for place in (directory, *directory.parents) if place.exists())
        return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    except OSError:  # the directory above may not be read, or a name is too long
        return False
