"""Tensors that stay compressed in memory, under PyTorch.

Importing it needs PyTorch 2.4 or later. The Triton kernels are modules of their own: import the one you need.
"""

from . import _torch_version  # noqa: F401 - raises where torch is missing or too old
from ._decode_ahead import DecodeAhead, decode_ahead
from .compressed_tensor import CompressedTensor
from .modules import MemoryReport, ModuleMemory, compress_module, decompress_module, memory_report, set_linear_mode

__all__ = [
    "CompressedTensor",
    "DecodeAhead",
    "MemoryReport",
    "ModuleMemory",
    "compress_module",
    "decode_ahead",
    "decompress_module",
    "memory_report",
    "set_linear_mode",
]
