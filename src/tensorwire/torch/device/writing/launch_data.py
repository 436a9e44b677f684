"""Launch data on a device: copied there in one piece, for which the host does not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ...frames.turn import is_capturing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..plan import Array


class LaunchData:
    """Numbers of 64 bits that kernels read, and write to where they are for that.

    Attributes:
        parts: on the device, in the order in which they were given.
    """

    def __init__(self, parts: Sequence[Array], device: torch.device) -> None:
        """Copy arrays of int64 on the current stream."""
        self._data = torch.from_numpy(np.concatenate(parts))
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._data = self._data.pin_memory().to(device, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(device))
        self.parts = self._data.split([*map(len, parts)])

    def await_copy(self) -> None:
        """Let the current stream wait until the data are there, and the data stay until it has done what comes next: it
        may be another stream than the one that copied them. In a graph, which keeps them itself, nothing is to do."""
        if self._copied is None or is_capturing(self._data.device):
            return
        current = torch.cuda.current_stream(self._data.device)
        current.wait_event(self._copied)
        self._data.record_stream(current)
