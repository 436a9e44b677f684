"""The calls of ``safetensors.numpy``: see `tensorwire.safetensors`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..checkpoint import load_file as _load_file
from ..checkpoint import save_file as _save_file
from ..checkpoint.tensors.as_safetensors import check_backend
from ..checkpoint.tensors.opening import load_bytes
from ..checkpoint.tensors.saving import save_bytes
from .order import in_order

if TYPE_CHECKING:
    import os

    import numpy

    Arrays = dict[str, numpy.ndarray[Any, Any]]

__all__ = ["load", "load_file", "save", "save_file"]


def save(tensor_dict: Arrays, metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of a compressed safetensors file with these arrays. They are written through a temporary file."""
    return save_bytes(in_order(tensor_dict), metadata)


def save_file(tensor_dict: Arrays, filename: str | os.PathLike[str], metadata: dict[str, str] | None = None) -> None:
    """Write arrays to a compressed safetensors file, as `tensorwire.save_file` does."""
    _save_file(in_order(tensor_dict), filename, metadata=metadata)


def load(data: bytes) -> Arrays:
    """The arrays in the bytes of a safetensors file, plain or compressed. They are read through a temporary file."""
    return load_bytes(data, "np")


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> Arrays:
    """The arrays of a file, plain or compressed. Both backends read alike."""
    check_backend(backend)
    return _load_file(filename)
