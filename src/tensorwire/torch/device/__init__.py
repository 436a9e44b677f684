"""Frames on a device: kernels in Triton, and what the host prepares for them.

docs/devices.md says what is decoded how, and what was proven on what. With TRITON_INTERPRET=1 in the environment,
before Triton is first imported, the kernels run on tensors in CPU memory.
"""

from . import triton_version  # noqa: F401 - raises where Triton is missing or too old
from .decode import decode_frame

__all__ = ["decode_frame"]
