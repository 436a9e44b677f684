"""Where the tests of Triton kernels run: in its interpreter, or on the device that TENSORWIRE_TEST_DEVICE names.

TENSORWIRE_TEST_DEVICE=cuda python -m pytest tests/torch/test_triton.py tests/torch/test_cuda*.py
"""

from __future__ import annotations

import ctypes
import mmap
import os

import torch

DEVICE = os.environ.get("TENSORWIRE_TEST_DEVICE", "cpu")
INTERPRETED = DEVICE == "cpu"


def on_device(frame: bytes | memoryview) -> torch.Tensor:
    """Its bytes on the device. In CPU memory they lie, as far as they are a multiple of 16, at the end of it: who reads
    behind them ends the process."""
    if not INTERPRETED:
        return torch.frombuffer(bytearray(frame) or bytearray(1), dtype=torch.uint8)[: len(frame)].to(DEVICE)
    page = mmap.PAGESIZE
    size = -(-len(frame) // page) * page
    memory = mmap.mmap(-1, size + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory, size))
    assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), page, 0) == 0
    start = (size - len(frame)) // 16 * 16
    memory[start : start + len(frame)] = bytes(frame)
    return torch.frombuffer(memory, dtype=torch.uint8)[start : start + len(frame)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
