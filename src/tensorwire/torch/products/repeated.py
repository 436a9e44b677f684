"""Large memory that takes little: the same pages many times over, or zeros that nobody has written to."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_MAP_FIXED = 0x10
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)
_ACCESS = mmap.PROT_READ | mmap.PROT_WRITE
_FAILED = ctypes.c_void_p(-1).value

_map_at = ctypes.CDLL(None, use_errno=True).mmap
_map_at.restype = ctypes.c_void_p
_map_at.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


def repeated(tile: Tensor, nbytes: int) -> Tensor:
    """Bytes that begin with `tile`, whole pages of bytes, and go on with it again and again.

    The pages of the tile are mapped at all places, which takes no memory and hardly any time. They are one: what is
    written at one place stands at all. Where the system cannot do that, the tile is copied.
    """
    try:
        memory = _mapped(tile.numel(), nbytes)
    except OSError:
        return tile.repeat(-(-nbytes // tile.numel()))[:nbytes]
    memory[: tile.numel()] = tile
    return memory[:nbytes]


def zeros(nbytes: int) -> Tensor:
    """Bytes, of which those pages take memory that are written to."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    memory = _reserved(nbytes)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a system that has no huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _reserved(nbytes: int) -> mmap.mmap:
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)


def _mapped(size: int, nbytes: int) -> Tensor:
    whole = _reserved(-(-nbytes // size) * size)
    memory = torch.frombuffer(whole, dtype=torch.uint8)  # when it goes, so do the maps in its place
    number = os.memfd_create("tensorwire")
    try:
        os.truncate(number, size)
        for address in range(memory.data_ptr(), memory.data_ptr() + memory.numel(), size):
            if _map_at(address, size, _ACCESS, mmap.MAP_SHARED | _MAP_FIXED | _MAP_POPULATE, number, 0) == _FAILED:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
    finally:
        os.close(number)
    return memory
