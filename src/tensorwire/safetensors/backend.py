"""What functions of safetensors do with their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_backend(backend: str) -> None:
    """Raise ValueError for a way to read that safetensors does not have; all files are read alike."""
    if backend not in ("mmap", "pread"):
        raise ValueError(f'expected backend "mmap" or "pread", got {backend!r}')


def in_order(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors by their names, so that a file does not depend on the order in which they are given."""
    return dict(sorted(tensors.items(), key=lambda item: str(item[0])))
