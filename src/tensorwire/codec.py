"""Buffers and arrays to frames, and back: one tensor is one frame (docs/format.md).

`compress`, `compress_bound`, `decompress`, `decompress_range` and `frame_info` work on whole frames in memory and are
what the package exports. `FrameEncoder`, `FrameReader`, `ContentHasher` and the rest are for the layers above this one.

Buffers are anything with the buffer protocol; sizes and offsets are in bytes; "content" means the uncompressed bytes of
a tensor. All functions are thread-safe and release the GIL while they work. `threads` defaults to all usable cores; a
call starts its own threads and ends them before it returns, so that a process may fork between calls. Equal input gives
equal frames whatever the machine, the CPU target and the number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from . import _core
from ._arrays import (
    TensorView,
    array_shape,
    as_array,
    byte_view,
    check_framework,
    check_framework_name,
    lasting_view,
    tensor_view,
)
from ._core import cpu_target
from ._dtypes import FloatFields, dtype_bits, float_fields, torch_name
from ._frames import (
    BlockInfo,
    ContentHasher,
    FrameEncoder,
    FrameInfo,
    FrameReader,
    Profile,
    new_frame,
    num_threads,
)
from ._memory import BytesBuilder, new_buffer
from .errors import CorruptDataError, LimitExceededError, TruncatedDataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy
    import torch
    from typing_extensions import Buffer

Framework = Literal["np", "pt", "bytes"]
"""What tensors are returned as: NumPy arrays, torch tensors, or their bytes."""

Out = TypeVar("Out")

__all__ = [
    "BlockInfo",
    "ContentHasher",
    "FloatFields",
    "FrameEncoder",
    "FrameInfo",
    "FrameReader",
    "Framework",
    "Profile",
    "TensorView",
    "array_shape",
    "as_array",
    "byte_view",
    "check_framework",
    "check_framework_name",
    "compress",
    "compress_bound",
    "content_hash",
    "cpu_target",
    "decompress",
    "decompress_range",
    "dtype_bits",
    "exponent_histogram",
    "float_fields",
    "frame_info",
    "new_buffer",
    "num_threads",
    "tensor_view",
    "torch_name",
]


@overload
def compress(
    array: Any,
    *,
    profile: Profile = "fast",
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    out: None = None,
    threads: int | None = None,
) -> bytes: ...
@overload
def compress(
    array: Any,
    *,
    profile: Profile = "fast",
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    out: object,
    threads: int | None = None,
) -> memoryview: ...
def compress(
    array: Any,
    *,
    profile: Profile = "fast",
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    out: object = None,
    threads: int | None = None,
) -> bytes | memoryview:
    """Compress one tensor into a frame.

    Args:
        array: a NumPy or ml_dtypes array, a torch tensor on the CPU, or any C-contiguous buffer. It is never written
            to. A non-contiguous array is copied, a big-endian one is stored little-endian.
        profile: "fast" decodes fastest, also on GPUs; "compact" is smaller, for disks and networks; "resident" is for
            weights that stay compressed in memory; "enec" is for NPUs and decodes without gathers. benchmarks/results
            has the ratio and the speed of each.
        dtype: name of the elements as in safetensors, e.g. "BF16". By default the array's own, or what the format of
            the buffer says. Given for an array it reinterprets its bytes (uint16 as "BF16"). Any other name of 1 to 16
            characters `A-Z 0-9 _` travels as opaque bytes; its bits per element follow from size and shape. What other
            libraries call a dtype of safetensors ("FP32", "float32") is refused.
        shape: by default the array's own, or one dimension for a buffer whose dtype is given.
        out: where to put the frame: a writable, C-contiguous buffer, NumPy array or torch tensor of at least
            `compress_bound` bytes, apart from `array`. Memory that is used again and again makes this the fastest way.
        threads: by default all usable cores.

    Returns:
        The frame as bytes; with `out`, a view of its part that holds the frame.

    Raises:
        UnsupportedTensorError: dtype, device or layout cannot be compressed.
        ValueError: profile, shape, dtype name or threads is invalid, or they do not fit the size; or `out` is too
            small, read-only, not contiguous or in the array's memory.
        TypeError: `dtype` is not a string.
    """
    source = tensor_view(array, dtype, shape)
    frame = new_frame(source.dtype, source.bits, source.shape, profile)
    bound, count = _core.frame_bound(frame), num_threads(threads)
    if out is not None:
        target = byte_view(out, writable=True)
        if len(target.data) < bound:
            raise ValueError(f"expected an output of at least {bound} bytes (compress_bound), got {len(target.data)}")
        _core.compress(frame, source.data, target.data, count)
        return lasting_view(target)[: frame.frame_nbytes]
    builder = BytesBuilder(bound)
    _core.compress(frame, source.data, builder.data, count)
    return builder.finish(frame.frame_nbytes)


def compress_bound(
    array: Any,
    *,
    profile: Profile = "fast",
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
) -> int:
    """The most bytes that `compress` with the same arguments can take: the size that its `out` needs.

    It depends on dtype, shape and profile alone; the content is not read.
    """
    source = tensor_view(array, dtype, shape)
    return _core.frame_bound(new_frame(source.dtype, source.bits, source.shape, profile))


@overload
def decompress(
    frame: Buffer,
    *,
    out: None = None,
    framework: Literal["np"] = "np",
    max_nbytes: int | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> numpy.ndarray[Any, Any]: ...
@overload
def decompress(
    frame: Buffer,
    *,
    out: None = None,
    framework: Literal["pt"],
    max_nbytes: int | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> torch.Tensor: ...
@overload
def decompress(
    frame: Buffer,
    *,
    out: None = None,
    framework: Literal["bytes"],
    max_nbytes: int | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> bytes: ...
@overload
def decompress(
    frame: Buffer,
    *,
    out: Out,
    framework: Framework = "np",
    max_nbytes: int | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> Out: ...
def decompress(
    frame: Buffer,
    *,
    out: Any = None,
    framework: Framework = "np",
    max_nbytes: int | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> Any:
    """Decompress one frame.

    Args:
        frame: exactly one frame.
        out: what to decode into: a NumPy array, a torch tensor on the CPU or a buffer, writable, C-contiguous, of
            exactly the tensor's size and apart from the frame. Its dtype and shape are its own business. What it
            holds after an error is unspecified.
        framework: what to return without `out`: "np" for a NumPy array (ml_dtypes for dtypes that NumPy lacks), "pt"
            for a torch tensor on the CPU, or "bytes", which every dtype has.
        max_nbytes: refuse a larger tensor before memory is allocated for it.
        threads: by default all usable cores.
        verify: check the checksum of each block. The checksum of header and index is always checked. Without it
            damaged data may decode to wrong values, but never reads or writes out of bounds. The content hash is never
            compared: the checksums of blocks cover their bytes, that of the header their order. Blocks exchanged on
            purpose, with all checksums made right, decode: ``codec.content_hash(data)`` tells, if it is compared with
            `FrameInfo.content_hash`.

    Returns:
        `out`, or a new array, writable, whose memory is page-aligned from one page on; or bytes.

    Raises:
        CorruptDataError, TruncatedDataError, UnsupportedVersionError: this release cannot decode the frame.
        LimitExceededError: the tensor is larger than `max_nbytes` or than the format allows.
        UnsupportedTensorError: the framework has no such dtype; or `out` is not on the CPU.
        ValueError: `out` does not fit, or is read-only, not contiguous or in the frame's memory.
    """
    whole, reader = _open_frame(frame)
    info = reader.info
    nbytes = info.uncompressed_nbytes
    if max_nbytes is not None and nbytes > max_nbytes:
        raise LimitExceededError(
            f"expected a tensor of at most {max_nbytes} bytes, got one of {nbytes}",
            advice="allow a larger max_nbytes if you trust the data",
        )
    if out is not None:
        _decode(whole, reader, 0, nbytes, byte_view(out, writable=True).data, threads, verify)
        return out
    check_framework(info.dtype, framework)
    if framework == "bytes":
        return _decoded_bytes(whole, reader, 0, nbytes, threads, verify)
    array_shape(info.dtype, info.shape, framework)
    buffer = new_buffer(nbytes)
    _decode(whole, reader, 0, nbytes, buffer, threads, verify)
    return as_array(buffer, info.dtype, info.shape, framework)


@overload
def decompress_range(
    frame: Buffer, start: int, stop: int, *, out: None = None, threads: int | None = None, verify: bool = True
) -> bytes: ...
@overload
def decompress_range(
    frame: Buffer, start: int, stop: int, *, out: Out, threads: int | None = None, verify: bool = True
) -> Out: ...
def decompress_range(
    frame: Buffer,
    start: int,
    stop: int,
    *,
    out: Any = None,
    threads: int | None = None,
    verify: bool = True,
) -> Any:
    """Decompress the content bytes [start, stop) of a frame: only the blocks they touch are read.

    Rows [i, j) of a tensor are the bytes [i * row_nbytes, j * row_nbytes).

    Args:
        out: as for `decompress`, of stop - start bytes.

    Returns:
        `out`, or bytes.

    Raises:
        ValueError: not 0 <= start <= stop <= uncompressed_nbytes; otherwise as `decompress`.
    """
    whole, reader = _open_frame(frame)
    if out is None:
        return _decoded_bytes(whole, reader, start, stop, threads, verify)
    _decode(whole, reader, start, stop, byte_view(out, writable=True).data, threads, verify)
    return out


def frame_info(frame: Buffer) -> FrameInfo:
    """Read the header of a frame. It is checked, the blocks are neither needed nor touched.

    Args:
        frame: a frame, or as much of it as holds its header and index.

    Raises:
        CorruptDataError, TruncatedDataError, UnsupportedVersionError, LimitExceededError
    """
    whole = byte_view(frame)
    return FrameReader(whole.data).info


def content_hash(data: Buffer, *, threads: int | None = None) -> str:
    """The content hash of a tensor's bytes, as in `FrameInfo.content_hash`."""
    hasher = ContentHasher(threads=threads)
    hasher.update(data)
    return hasher.hexdigest()


def exponent_histogram(dtype: str, data: Buffer, counts: list[int] | None = None) -> list[int]:
    """Count the exponents of a float tensor's bytes: 256 counts, added to `counts` when that is given.

    Raises:
        ValueError: the dtype has no exponent (is not BF16, F16, F32, F8_E4M3 or F8_E5M2), or an element is cut off.
    """
    source = byte_view(data)
    return _core.exponent_histogram(dtype, source.data, counts or [0] * 256)


def _open_frame(frame: Any) -> tuple[TensorView, FrameReader]:
    """The bytes of exactly one frame, and what reads them."""
    whole = byte_view(frame)
    reader = FrameReader(whole.data)
    info = reader.info
    if len(whole.data) < info.frame_nbytes:
        raise TruncatedDataError(
            f"expected a frame of {info.frame_nbytes} bytes, got {len(whole.data)}", byte=len(whole.data)
        )
    if len(whole.data) > info.frame_nbytes:
        raise CorruptDataError(
            f"expected a frame of {info.frame_nbytes} bytes, got {len(whole.data)}", byte=info.frame_nbytes
        )
    return whole, reader


def _decoded_bytes(
    whole: TensorView, reader: FrameReader, start: int, stop: int, threads: int | None, verify: bool
) -> bytes:
    reader.data_range(start, stop)  # before memory is allocated for a range that is none
    builder = BytesBuilder(stop - start)
    _decode(whole, reader, start, stop, builder.data, threads, verify)
    return builder.finish(stop - start)


def _decode(
    whole: TensorView,
    reader: FrameReader,
    start: int,
    stop: int,
    out: memoryview,
    threads: int | None,
    verify: bool,
) -> None:
    lo, hi = reader.data_range(start, stop)
    first_block = reader.info.header_nbytes
    reader.decode(
        whole.data[first_block + lo : first_block + hi],
        out,
        start=start,
        stop=stop,
        data_offset=lo,
        threads=threads,
        verify=verify,
    )
