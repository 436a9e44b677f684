"""Tensors that stay compressed in memory, under PyTorch.

Importing it needs PyTorch. The Triton kernels are modules of their own: import the one you need.
"""

from .compressed_tensor import CompressedTensor
from .modules import MemoryReport, ModuleMemory, compress_module, decompress_module, memory_report, set_linear_mode

__all__ = [
    "CompressedTensor",
    "MemoryReport",
    "ModuleMemory",
    "compress_module",
    "decompress_module",
    "memory_report",
    "set_linear_mode",
]
