"""Frames on a device: kernels, and what the host prepares for them.

On NVIDIA's GPUs they are CUDA C++, which NVRTC compiles at the first use; on all others, and without NVRTC, Triton's.
docs/devices.md says what is decoded how, and what was proven on what.
"""

from .frame import decode_frame
from .writing.applying import apply_
from .writing.encoding import encode_into
from .writing.pages import DevicePages
from .writing.status import Status, raise_for

__all__ = ["DevicePages", "Status", "apply_", "decode_frame", "encode_into", "raise_for"]
