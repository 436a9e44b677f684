"""Directories of plain safetensors files that follow a publisher (docs/sync.md)."""

from .in_place import InPlaceTarget
from .linked import DirectoryTarget

__all__ = ["DirectoryTarget", "InPlaceTarget"]
