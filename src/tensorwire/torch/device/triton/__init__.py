"""Kernels in Triton, for devices that are not NVIDIA's, and where NVRTC is missing. They decode, and multiply nothing.

With TRITON_INTERPRET=1 in the environment, before Triton is first imported, they run on tensors in CPU memory.
"""

from . import triton_version  # noqa: F401 - raises where Triton is missing or too old
