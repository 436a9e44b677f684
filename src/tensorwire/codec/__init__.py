"""Buffers and arrays to frames, and back: one tensor is one frame (docs/format.md).

`compress`, `compress_bound`, `decompress`, `decompress_range`, `compose` and `frame_info` work on whole frames in
memory and are what the package exports. `FrameEncoder`, `FrameReader`, `ContentHasher` and the rest are for the layers
above this one.

Buffers are anything with the buffer protocol; sizes and offsets are in bytes; "content" means the uncompressed bytes of
a tensor. All functions are thread-safe and release the GIL while they work. `threads` defaults to all usable cores; a
call starts its own threads and ends them before it returns, so that a process may fork between calls. Equal input gives
equal frames on any machine, CPU target and number of threads.
"""

from .changes import ChangedElements
from .frame.base_check import base_mismatch
from .frame.chunks import FrameEncoder, FrameReader, blocks_of, is_labelled, same_frame
from .frame.core import LEAF_NBYTES, cpu_target
from .frame.core import version as library_version
from .frame.facts import BlockInfo, FrameInfo, Profile, check_frame_size, check_padding
from .frame.form import DEFAULT_ALIGNMENT
from .frame.layouts import FloatFields, float_fields
from .frame.limit import check_max_nbytes
from .frame.relative import check_takes_base, compress_bytes, compress_over
from .frame.threads import num_threads
from .hasher import ContentHasher
from .view.arrays import (
    AS_BYTES,
    MAX_NDIM,
    TensorView,
    address_of,
    array_layout,
    array_shape,
    as_array,
    byte_view,
    check_framework,
    check_framework_name,
    check_label,
    checked_shape,
    shape_sizes,
    tensor_view,
    torch_dtype,
)
from .view.dtypes import DTYPE_NAME, FROM_TORCH, Layout, check_dtype_name, dtype_bits, torch_name
from .view.places import changed_in_place, tied_names
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
    "AS_BYTES",
    "DEFAULT_ALIGNMENT",
    "DTYPE_NAME",
    "FROM_TORCH",
    "LEAF_NBYTES",
    "MAX_NDIM",
    "BlockInfo",
    "ChangedElements",
    "ContentHasher",
    "FloatFields",
    "FrameEncoder",
    "FrameInfo",
    "FrameReader",
    "Framework",
    "Layout",
    "Profile",
    "TensorView",
    "address_of",
    "array_layout",
    "array_shape",
    "as_array",
    "base_mismatch",
    "blocks_of",
    "byte_view",
    "changed_in_place",
    "check_dtype_name",
    "check_frame_size",
    "check_framework",
    "check_framework_name",
    "check_label",
    "check_max_nbytes",
    "check_padding",
    "check_takes_base",
    "checked_shape",
    "compose",
    "compress",
    "compress_bound",
    "compress_bytes",
    "compress_over",
    "content_hash",
    "cpu_target",
    "decompress",
    "decompress_range",
    "dtype_bits",
    "exponent_histogram",
    "float_fields",
    "frame_info",
    "is_labelled",
    "library_version",
    "num_threads",
    "same_frame",
    "shape_sizes",
    "tensor_view",
    "tied_names",
    "torch_dtype",
    "torch_name",
]
