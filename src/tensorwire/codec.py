"""Buffers and arrays to frames, and back: one tensor is one frame (docs/format.md).

`compress`, `decompress`, `decompress_range` and `frame_info` work on whole frames in memory and are what the package
exports. `FrameEncoder`, `FrameReader`, `ContentHasher` and the rest are for the layers above this one.

Buffers are anything with the buffer protocol; sizes and offsets are in bytes; "content" means the uncompressed bytes of
a tensor. All functions are thread-safe and release the GIL while they work. `threads` defaults to all usable cores; a
call starts its own threads and ends them before it returns, so that a process may fork between calls. Equal input gives
equal frames whatever the machine, the CPU target and the number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from . import _core
from ._arrays import TensorView, as_array, byte_view, check_framework, dtype_bits, new_buffer, tensor_view
from ._core import cpu_target
from ._frames import (
    STREAM_NBYTES,
    BlockInfo,
    ContentHasher,
    FrameEncoder,
    FrameInfo,
    FrameReader,
    Profile,
    new_frame,
    num_threads,
)
from .errors import CorruptDataError, LimitExceededError, TruncatedDataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

Framework = Literal["numpy", "torch", "buffer"]

__all__ = [
    "STREAM_NBYTES",
    "BlockInfo",
    "ContentHasher",
    "FloatFields",
    "FrameEncoder",
    "FrameInfo",
    "FrameReader",
    "Framework",
    "Profile",
    "TensorView",
    "as_array",
    "byte_view",
    "check_framework",
    "compress",
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
]


def compress(
    array: Any,
    *,
    profile: Profile = "fast",
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    threads: int | None = None,
) -> memoryview:
    """Compress one tensor into a frame.

    Args:
        array: a NumPy or ml_dtypes array, a torch tensor on the CPU, or any C-contiguous buffer. It is never written
            to. A non-contiguous array is copied, a big-endian one is stored little-endian.
        profile: "fast" decodes at memory speed; "compact" is smaller, for disks and networks; "enec" is what
            accelerators decode without gathers.
        dtype: name of the elements as in safetensors, e.g. "BF16". By default the array's own; needed for a buffer that
            is not of unsigned bytes. Given for an array it reinterprets its bytes (uint16 as "BF16"). Any other name of
            1 to 16 characters `A-Z 0-9 _` travels as opaque bytes; its bits per element follow from size and shape.
        shape: by default the array's own, or one dimension for a buffer.
        threads: by default all usable cores.

    Returns:
        The frame, a read-only view of page-aligned memory that it owns. It can be written to files and sockets and
        compared with bytes; ``bytes(frame)`` copies it.

    Raises:
        UnsupportedTensorError: dtype, device or layout cannot be compressed.
        ValueError: profile, shape, dtype name or threads is invalid, or they do not fit the size.
    """
    source = tensor_view(array, dtype, shape)
    frame = new_frame(source.dtype, source.bits, source.shape, profile)
    buffer = new_buffer(_core.frame_bound(frame))
    _core.compress(frame, source.data, buffer, num_threads(threads))
    return buffer[: frame.frame_nbytes].toreadonly()


def decompress(
    frame: Buffer,
    *,
    out: Any = None,
    framework: Framework = "numpy",
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
        framework: what to return without `out`: "numpy" (ml_dtypes for dtypes that NumPy lacks), "torch", or "buffer",
            a memoryview of the bytes, which every dtype has.
        max_nbytes: refuse a larger tensor before memory is allocated for it.
        threads: by default all usable cores.
        verify: check the checksum of each block. The checksum of header and index is always checked. Without it
            damaged data may decode to wrong values, but never reads or writes out of bounds. The content hash is never
            compared: the checksums of blocks cover their bytes, that of the header their order. Blocks exchanged on
            purpose, with all checksums made right, decode: ``codec.content_hash(data)`` tells, if it is compared with
            `FrameInfo.content_hash`.

    Returns:
        `out`, or a new array. Its memory is page-aligned from one page on.

    Raises:
        CorruptDataError, TruncatedDataError, UnsupportedVersionError: this release cannot decode the frame.
        LimitExceededError: the tensor is larger than `max_nbytes` or than the format allows.
        UnsupportedTensorError: the framework has no such dtype; or `out` is not on the CPU.
        ValueError: `out` does not fit, or is read-only, not contiguous or in the frame's memory.
    """
    whole, reader = _open_frame(frame)
    info = reader.info
    if max_nbytes is not None and info.uncompressed_nbytes > max_nbytes:
        raise LimitExceededError(
            f"expected a tensor of at most {max_nbytes} bytes, got one of {info.uncompressed_nbytes}",
            advice="allow a larger max_nbytes if you trust the data",
        )
    if out is None:
        check_framework(info.dtype, framework)
    data = _decompress_into(whole, reader, 0, info.uncompressed_nbytes, out, threads, verify)
    return as_array(data, info.dtype, info.shape, framework) if out is None else out


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
        `out`, or a memoryview of new memory.

    Raises:
        ValueError: not 0 <= start <= stop <= uncompressed_nbytes; otherwise as `decompress`.
    """
    whole, reader = _open_frame(frame)
    data = _decompress_into(whole, reader, start, stop, out, threads, verify)
    return data if out is None else out


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


class FloatFields(NamedTuple):
    """How a frame splits the words of a float dtype (docs/format.md, "Dtypes"). Above them stands the sign."""

    exponent_bits: int
    mantissa_bits: int

    @property
    def bias(self) -> int:
        """What is added to the exponent of 1.0, which is 0, before it is stored."""
        return (1 << (self.exponent_bits - 1)) - 1


def float_fields(dtype: str) -> FloatFields | None:
    """The fields of a dtype whose words are split: BF16, F16, F32, F8_E4M3 or F8_E5M2. None for any other."""
    row = _core.find_dtype(dtype)
    return FloatFields(row.exponent_bits, row.mantissa_bits) if row is not None and row.exponent_bits else None


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
    reader.check_trailer(whole.data[info.header_nbytes + info.data_nbytes :])
    return whole, reader


def _decompress_into(
    whole: TensorView, reader: FrameReader, start: int, stop: int, out: Any, threads: int | None, verify: bool
) -> memoryview:
    lo, hi = reader.data_range(start, stop)
    first_block = reader.info.header_nbytes
    if out is None:
        buffer = new_buffer(stop - start)
    else:
        target = byte_view(out, writable=True)
        buffer = target.data
    reader.decode(
        whole.data[first_block + lo : first_block + hi],
        buffer,
        start=start,
        stop=stop,
        data_offset=lo,
        threads=threads,
        verify=verify,
    )
    return buffer
