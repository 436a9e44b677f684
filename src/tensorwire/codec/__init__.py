"""Buffers and arrays to frames, and back: one tensor is one frame (docs/format.md).

`compress`, `compress_bound`, `decompress`, `decompress_range`, `compose` and `frame_info` work on whole frames in
memory and are what the package exports. `FrameEncoder`, `FrameReader`, `ContentHasher` and the rest are for the layers
above this one.

Buffers are anything with the buffer protocol; sizes and offsets are in bytes; "content" means the uncompressed bytes of
a tensor. All functions are thread-safe and release the GIL while they work. `threads` defaults to all usable cores; a
call starts its own threads and ends them before it returns, so that a process may fork between calls. Equal input gives
equal frames whatever the machine, the CPU target and the number of threads.
"""

from .arrays import (
    TensorView,
    array_layout,
    array_shape,
    as_array,
    byte_view,
    check_framework,
    check_framework_name,
    check_label,
    shape_sizes,
    tensor_view,
    torch_dtype,
)
from .base_check import base_mismatch
from .core import cpu_target
from .core import version as library_version
from .dtypes import FloatFields, Layout, dtype_bits, float_fields, torch_name
from .facts import BlockInfo, FrameInfo, Profile, check_frame_size, check_padding
from .frames import FrameEncoder, FrameReader
from .hasher import ContentHasher
from .memory import new_buffer
from .places import changed_in_place, tied_names
from .relative import check_takes_base, compress_over
from .threads import num_threads
from .whole import (
    Framework,
    compose,
    compress,
    compress_bound,
    content_hash,
    decompress,
    decompress_range,
    exponent_histogram,
    frame_info,
)

__all__ = [
    "BlockInfo",
    "ContentHasher",
    "FloatFields",
    "FrameEncoder",
    "FrameInfo",
    "FrameReader",
    "Framework",
    "Layout",
    "Profile",
    "TensorView",
    "array_layout",
    "array_shape",
    "as_array",
    "base_mismatch",
    "byte_view",
    "changed_in_place",
    "check_frame_size",
    "check_framework",
    "check_framework_name",
    "check_label",
    "check_padding",
    "check_takes_base",
    "compose",
    "compress",
    "compress_bound",
    "compress_over",
    "content_hash",
    "cpu_target",
    "decompress",
    "decompress_range",
    "dtype_bits",
    "exponent_histogram",
    "float_fields",
    "frame_info",
    "library_version",
    "new_buffer",
    "num_threads",
    "shape_sizes",
    "tensor_view",
    "tied_names",
    "torch_dtype",
    "torch_name",
]
