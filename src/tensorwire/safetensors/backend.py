"""How safetensors is told to read a file."""

from __future__ import annotations


def check_backend(backend: str) -> None:
    """Raise ValueError for a way to read that safetensors does not have; all files are read alike."""
    if backend not in ("mmap", "pread"):
        raise ValueError(f'expected backend "mmap" or "pread", got {backend!r}')
