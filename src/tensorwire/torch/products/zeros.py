"""Large memory of which most is zero, and takes none."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..._ground.allocation import MAP_NORESERVE

if TYPE_CHECKING:
    from torch import Tensor


def zeros(nbytes: int) -> Tensor:
    """Bytes, of which those pages take memory that are written to."""
    return zeros_around((), nbytes) if nbytes else torch.empty(0, dtype=torch.uint8, device="cpu")


def zeros_around(parts: Sequence[tuple[int, Tensor]], nbytes: int) -> Tensor:
    """The same, 1 byte or more, with some parts that are not zero, each by its start and its bytes, contiguous.

    A program that reads all of it reads one large page of zeros again and again, where the system has large pages."""
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    except OSError as error:
        raise MemoryError(f"no memory of {nbytes:,} bytes") from error
    _advise(memory, "MADV_NOHUGEPAGE")  # a byte that is written would take one
    found = torch.frombuffer(memory, dtype=torch.uint8)
    for start, part in parts:
        ctypes.memmove(found.data_ptr() + start, part.data_ptr(), part.numel())
    if parts:
        _advise(memory, "MADV_HUGEPAGE")
    return found


def _advise(memory: mmap.mmap, name: str) -> None:
    advice = getattr(mmap, name, None)
    if advice is not None:
        with contextlib.suppress(OSError):  # a system that has no huge pages
            memory.madvise(advice)
