"""Frames in memory of the host from which a device copies by itself."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from ..._ground.allocation import new_buffer
from ..._ground.copies import not_copied
from ..frames.open_frame import Origin, attach, opened

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger("tensorwire")

_PAGE_NBYTES = 4096
_PIECE_NBYTES = 1 << 30
"""About what is pinned in one call. If the system refuses one, the pieces before it stay pinned."""


class HostMemory:
    """One piece of memory with many frames, each on pages of its own.

    Attributes:
        frames: copies of those that it was made of, opened, in their order. They keep the memory.
        nbytes: size of the frames.
        pinned_nbytes: size of those that a device copies while the host goes on.
    """

    __reduce_ex__ = not_copied("memory that a device knows", "offload the other model")

    def __init__(self, frames: Sequence[Tensor], pinning: Pinning) -> None:
        """Copy the frames. All their blocks are checked, since a device checks none."""
        self._pinning = pinning
        self.nbytes = sum(frame.numel() for frame in frames)
        self.pinned_nbytes = 0
        memory = new_buffer(max(1, sum(_on_pages(frame.numel()) for frame in frames)))
        self.frames: list[Tensor] = []
        self._pieces: list[int] = []
        start = 0
        for frame in frames:
            found = opened(frame)
            found.check()
            copy = torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=frame.numel())
            copy.copy_(found.in_memory(frame))
            found.check_unchanged()
            self.frames.append(attach(copy, Origin(found.origin.file, found.origin.tensor, verify=False)))
            start += _on_pages(frame.numel())
        self._unpin = weakref.finalize(self, _unpin, pinning, self._pieces, memory)
        self._pin()

    def close(self) -> None:
        """Unpin it. No copy may be under way. The frames stay."""
        self._unpin()

    def _pin(self) -> None:
        first = 0
        for last, frame in enumerate(self.frames):
            begin = self.frames[first].data_ptr()
            stop = frame.data_ptr() + frame.numel()
            if stop - begin < _PIECE_NBYTES and last + 1 < len(self.frames):
                continue
            refused = self._pinning.pin(begin, _on_pages(stop - begin))
            if refused is not None:
                _log.warning(
                    "%d of %d bytes of weights could not be pinned (%s): the host waits for copies of these",
                    self.nbytes - self.pinned_nbytes, self.nbytes, refused,
                )  # fmt: skip
                return
            self._pieces.append(begin)
            self.pinned_nbytes += sum(frame.numel() for frame in self.frames[first : last + 1])
            first = last + 1


class Pinning:
    """How memory of the host is pinned for a kind of device: CUDA's way, which torch has for AMD too."""

    def __init__(self, device: torch.device) -> None:
        self._runtime: Any = torch.cuda.cudart() if device.type == "cuda" else None
        self._device = device

    def pin(self, address: int, nbytes: int) -> str | None:
        """None if it is pinned, or why not."""
        if self._runtime is None:
            return f"torch has no call for that on {self._device.type}"
        error = self._runtime.cudaHostRegister(address, nbytes, 1)  # for all contexts
        if int(error) == 0:
            return None
        with suppress(RuntimeError):  # torch finds the error again with its next kernel, and raises it there
            torch.ones(1, device=self._device)
        return str(error)

    def unpin(self, address: int) -> None:
        """Undo `pin`."""
        self._runtime.cudaHostUnregister(address)


def _unpin(pinning: Pinning, pieces: list[int], memory: memoryview) -> None:
    """`memory` is an argument: it must not be freed before."""
    unpin: Callable[[int], None] = pinning.unpin
    while pieces:
        unpin(pieces.pop())


def _on_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE_NBYTES) * _PAGE_NBYTES
