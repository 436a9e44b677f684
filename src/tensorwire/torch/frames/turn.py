"""Whose turn it is on a device: the thread's current stream, and the graph that is captured on it."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import torch


class Turn(NamedTuple):
    """Where work that is launched now goes.

    Attributes:
        stream: the current stream's handle.
        capture: the number of the graph that is captured on it, which no other graph of the process has; 0 for none.
    """

    stream: int
    capture: int


def turn_of(device: torch.device) -> Turn:
    """The turn of this thread on a device."""
    if device.type != "cuda":
        module: Any = getattr(torch, device.type, None)
        current = getattr(module, "current_stream", None)
        return Turn(id(None) if current is None else hash(current(device)), 0)
    stream = torch.cuda.current_stream(device).cuda_stream
    return Turn(stream, _captured_on(stream) if torch.cuda.is_current_stream_capturing() else 0)


def is_capturing(device: torch.device) -> bool:
    """Whether work on a device would become part of a graph now: then the host can wait for nothing."""
    return bool(device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def wait_for(device: torch.device) -> None:
    """Until all that was launched on a device is done."""
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "synchronize"):
        module.synchronize(device)


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _captured_on(stream: int) -> int:
    """Torch does not tell the number of a graph, which the driver knows."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    failed = _driver().cuStreamGetCaptureInfo(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number))
    if failed or status.value != 1:
        raise RuntimeError(f"expected a stream on which a graph is captured, the driver says {failed}, {status.value}")
    return number.value
