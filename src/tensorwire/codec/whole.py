"""Whole frames in memory: what the package exports of the codec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from .._ground.allocation import new_buffer
from ..errors import LimitExceededError
from .frame import core
from .frame.base_check import check_base_hash, check_base_size, check_result, hash_of
from .frame.chunks import FrameReader, blocks_of
from .frame.facts import FrameInfo, Profile, frame_facts
from .frame.form import NO_HASH, checked_hash
from .frame.layouts import word_bits
from .frame.limit import check_max_nbytes
from .frame.relative import base_to_encode, check_chain, compress_into, decode_checked, frame_of, is_same_memory
from .frame.threads import num_threads
from .view.arrays import (
    TensorView,
    array_shape,
    as_array,
    byte_view,
    check_framework,
    check_label,
    empty_view,
    tensor_view,
)
from .view.bytes_builder import BytesBuilder

if TYPE_CHECKING:
    import numpy
    import torch
    from typing_extensions import Buffer, TypedDict, Unpack

    from .view.dtypes import Layout

    # The options that have no say in what is returned.
    class _Encoding(TypedDict, total=False):
        profile: Profile
        dtype: str | None
        shape: Sequence[int] | None
        layout: Layout | None
        base: Any
        base_hash: str | None
        threads: int | None

    class _DecodingRange(TypedDict, total=False):
        base: Any
        threads: int | None
        verify: bool

    class _Decoding(_DecodingRange, total=False):
        max_nbytes: int | None


Framework = Literal["np", "pt", "bytes"]
"""The form that tensors are returned in: NumPy arrays, torch tensors, or their bytes."""

Out = TypeVar("Out")


@overload
def compress(array: Any, *, out: None = None, **options: Unpack[_Encoding]) -> bytes: ...
@overload
def compress(array: Any, *, out: object, **options: Unpack[_Encoding]) -> memoryview: ...
def compress(
    array: Any,
    *,
    profile: Profile = "fast",
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    layout: Layout | None = None,
    base: Any = None,
    base_hash: str | None = None,
    out: object = None,
    threads: int | None = None,
) -> bytes | memoryview:
    """Compress one tensor into a frame.

    Args:
        array: a NumPy or ml_dtypes array, a torch tensor on the CPU, or any C-contiguous buffer. It is never written
            to. A non-contiguous array is copied, a big-endian one is stored little-endian.
        profile: "fast" decodes fastest; "compact" is smaller, for disks and networks; "resident" is for weights that
            stay compressed in memory of a CPU with AVX2; "enec" is for NPUs. docs/choose.md tells which one to take.
        dtype: name of the elements as in safetensors, e.g. "BF16". By default the array's own, or what the format of
            the buffer says. Given for an array it reinterprets its bytes (uint16 as "BF16"). Any other name of 1 to 16
            characters `A-Z 0-9 _` travels as bytes, unless `layout` tells more; its bits per element follow from size
            and shape; without a shape they are those of a word. Other libraries' names for dtypes of safetensors
            ("FP32", "float32") are refused.
        shape: by default the array's own, or one dimension for a buffer whose dtype is given.
        layout: how long words are and how they are split. By default that of the dtype in the table of docs/format.md.
        base: another tensor of the same dtype and size, such as the weights one training step before. The frame then is
            relative to it: it holds what differs, and can be decompressed only with this base. A `dtype` that is given
            says what the bytes of both are. Others may not write to it meanwhile: it is read once more in the end, and
            if it changed the frame is a plain one and a RuntimeWarning says so.
        base_hash: the content hash of the base, if you know it (`FrameInfo.content_hash` of the frame that it came
            from): the base is hashed neither before nor after. It is your promise: a frame with another hash than its
            base has cannot be decompressed.
        out: where to put the frame: a writable, C-contiguous buffer, NumPy array or torch tensor, apart from `array`
            and `base`. Every frame fits into `compress_bound` bytes; with less it depends on the content. What it holds
            behind the frame, or after an error, is undefined. Memory that is used again and again makes this the
            fastest way.
        threads: by default all usable cores.

    Returns:
        The frame as bytes; with `out`, a view of its part that holds the frame.

    Raises:
        DoesNotFit: the frame is larger than `out`. That is found at the first blocks that do not fit.
        UnsupportedTensorError: dtype, device or layout cannot be compressed.
        ValueError: profile, shape, dtype name, layout or threads is invalid, or they do not fit the size; `base` has
            another dtype or size; `base_hash` is no hash, or there is no base; or `out` is read-only, not contiguous or
            in the memory of `array` or `base`.
        TypeError: `dtype` is not a string, or `layout` is no Layout.
        BufferError: the memory of `array` or `base` was freed, moved or cut meanwhile.
    """
    source = tensor_view(array, dtype, shape, word_bits(layout))
    count = num_threads(threads)
    if base is None and base_hash is not None:
        raise ValueError("expected a base with base_hash, got none; leave base_hash out")
    old = None if base is None else base_to_encode(source, base, dtype, profile)
    known = None if old is None else NO_HASH if base_hash is None else checked_hash(base_hash)
    new = frame_of(source, profile, layout, known)
    if out is not None:
        target = byte_view(out, writable=True)
        nbytes = compress_into(new, source, old, target.data, count, known_base=base_hash is not None)
        return target.data[:nbytes]
    builder = BytesBuilder(core.frame_bound(new))
    return builder.finish(compress_into(new, source, old, builder.data, count, known_base=base_hash is not None))


def compress_bound(
    array: Any = None,
    *,
    profile: Profile = "fast",
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    layout: Layout | None = None,
) -> int:
    """The most bytes that `compress` with the same arguments can take: the size of an `out` that is always enough.

    It depends on dtype, shape, layout and profile alone; the content is not read, and a base changes nothing. So
    `dtype` and `shape` are enough, without an array.

    Raises:
        TypeError: there is no array, and `dtype` or `shape` is missing; otherwise as `compress`.
    """
    if array is not None:
        source = tensor_view(array, dtype, shape, word_bits(layout))
    elif dtype is not None and shape is not None:
        source = empty_view(dtype, shape, word_bits(layout))
    else:
        raise TypeError("expected an array, or dtype= and shape= of one, got neither")
    return core.frame_bound(frame_of(source, profile, layout))


@overload
def decompress(
    frame: Buffer, *, out: None = None, framework: Literal["np"] = "np", **options: Unpack[_Decoding]
) -> numpy.ndarray[Any, Any]: ...
@overload
def decompress(
    frame: Buffer, *, out: None = None, framework: Literal["pt"], **options: Unpack[_Decoding]
) -> torch.Tensor: ...
@overload
def decompress(
    frame: Buffer, *, out: None = None, framework: Literal["bytes"], **options: Unpack[_Decoding]
) -> bytes: ...
@overload
def decompress(frame: Buffer, *, out: Out, framework: Framework = "np", **options: Unpack[_Decoding]) -> Out: ...
def decompress(
    frame: Buffer,
    *,
    base: Any = None,
    out: Any = None,
    framework: Framework = "np",
    max_nbytes: int | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> Any:
    """Decompress one frame: a trusting reader of plain frames, a checking reader of relative ones (docs/format.md).

    Args:
        frame: a buffer that begins with a frame. What stands behind it is not read: a frame may lie in a slot that is
            larger than it.
        base: the tensor that a relative frame is relative to: an array, tensor or buffer with the same bytes.
        out: what to decode into: a NumPy array, a torch tensor on the CPU or a buffer, writable, C-contiguous, of
            exactly the tensor's size and apart from the frame. Its dtype and shape are its own business. After
            an error its content is unspecified. It may be the very memory of `base`, which is then changed in place:
            see below.
        framework: what to return without `out`: "np" for a NumPy array (ml_dtypes for dtypes that NumPy lacks), "pt"
            for a torch tensor on the CPU, or "bytes", which every dtype has.
        max_nbytes: refuse a larger tensor before memory is allocated for it.
        threads: by default all usable cores.
        verify: check the checksum of each block. The checksum of header and index is always checked. Without it
            damaged data may decode to wrong values, but never reads or writes out of bounds. The content hash of a
            plain frame is not compared: the checksums of blocks cover their bytes, that of the header their order. To
            find a wrong encoder, compare ``codec.content_hash(data)`` with `FrameInfo.content_hash`; to find a forger,
            compare a SHA-256. For a relative frame the content hashes of base and result are compared, which costs a
            read of each; without `verify` only the size of the base is checked.

    In place (`out` is the base) nothing is written unless the memory is the base and the checksum of every block is
    right. If the memory holds the result already, nothing is done: to apply a frame twice is no mistake. Without
    `verify` it is one.

    Returns:
        `out`, or a new array, writable, whose memory is page-aligned from one page on; or bytes.

    Raises:
        BaseMismatchError: the frame is relative, and `base` is missing or not the one that it needs.
        CorruptDataError, TruncatedDataError, UnsupportedVersionError: this release cannot decode the frame.
        LimitExceededError: the tensor is larger than `max_nbytes` or than the format allows.
        UnsupportedTensorError: the framework has no such dtype; or `out` is not on the CPU.
        ValueError: `out` does not fit, or is read-only, not contiguous, in the frame's memory or partly in the base's;
            or there is a `base` and the frame is plain.
        TypeError, ValueError: `max_nbytes` is no number of bytes.
    """
    check_max_nbytes(max_nbytes)
    blocks, reader = _open_frame(frame)
    info = reader.info
    nbytes = info.uncompressed_nbytes
    if max_nbytes is not None and nbytes > max_nbytes:
        raise LimitExceededError(
            f"expected a tensor of at most {max_nbytes} bytes, got one of {nbytes}",
            advice="allow a larger max_nbytes if you trust the data",
        )
    if out is None:
        check_framework(info.dtype, framework)
        if framework != "bytes":
            check_label(info.dtype, info.bits)
    if out is not None or framework == "bytes":
        return _decoded(blocks, reader, 0, nbytes, out, base=base, threads=threads, verify=verify)
    old = check_base_size(info, base)
    array_shape(info.dtype, info.shape, framework)
    buffer = new_buffer(nbytes)
    _decode(blocks, reader, 0, nbytes, buffer, own=True, old=old, threads=threads, verify=verify)
    return as_array(buffer, info.dtype, info.shape, framework)


@overload
def decompress_range(
    frame: Buffer, start: int, stop: int, *, out: None = None, **options: Unpack[_DecodingRange]
) -> bytes: ...
@overload
def decompress_range(frame: Buffer, start: int, stop: int, *, out: Out, **options: Unpack[_DecodingRange]) -> Out: ...
def decompress_range(
    frame: Buffer,
    start: int,
    stop: int,
    *,
    base: Any = None,
    out: Any = None,
    threads: int | None = None,
    verify: bool = True,
) -> Any:
    """Decompress the content bytes [start, stop) of a frame: only the blocks they touch are read. So it is a trusting
    reader (docs/format.md).

    Rows [i, j) of a tensor are the bytes [i * row_nbytes, j * row_nbytes).

    Args:
        base: as for `decompress`: the whole base, of which the same blocks are used. With `verify` all of it is hashed
            in each call, so many ranges of one frame are cheaper without; the result is not hashed.
        out: as for `decompress`, of stop - start bytes, and apart from the base.

    Returns:
        `out`, or bytes.

    Raises:
        ValueError: not 0 <= start <= stop <= uncompressed_nbytes; otherwise as `decompress`.
    """
    return _decoded(*_open_frame(frame), start, stop, out, base=base, threads=threads, verify=verify)


def compose(base: Any, *deltas: Buffer, profile: Profile | None = None, threads: int | None = None) -> bytes:
    """One frame relative to `base` in place of several, each of which is relative to what the one before it gives.

    The frames are decoded one after the other, into one copy of the tensor, by a checking reader (docs/format.md). The
    result is the frame that `compress` makes of the last content with this base.

    Args:
        base: the base of the first frame, as for `decompress`.
        deltas: relative frames, in the order in which they were made.
        profile: of the result; by default that of the last frame.

    Raises:
        BaseMismatchError: the frames are no chain that begins at `base`: one is missing, out of order or there twice.
        ValueError: there is no frame, or one that is not relative.
        TypeError: the frames are given as one list.
        FormatError: a frame is damaged.
    """
    if any(isinstance(delta, (list, tuple)) for delta in deltas):
        raise TypeError("expected frames, got a list of them; give each as an argument: compose(base, *deltas)")
    frames = [_open_frame(delta) for delta in deltas]
    infos = [reader.info for _, reader in frames]
    old = byte_view(base)
    check_chain(infos, old, hash_of(old.data, threads))
    last = infos[-1]
    content = new_buffer(last.uncompressed_nbytes)
    source = old.data
    for blocks, reader in frames:
        reader.decode(blocks, content, base=source, threads=threads)
        check_result(reader.info, hash_of(content, threads))
        source = content
    return compress(
        content,
        profile=profile or last.profile,
        dtype=last.dtype,
        shape=last.shape,
        layout=last.layout,
        base=old.data,
        threads=threads,
    )


def frame_info(frame: Buffer) -> FrameInfo:
    """Read the header of a frame. It is checked; index and blocks are neither needed nor touched.

    Args:
        frame: a frame, or its first 128 bytes and 8 for each dimension: 640 bytes are always enough.

    Raises:
        CorruptDataError, TruncatedDataError, UnsupportedVersionError, LimitExceededError
    """
    source = byte_view(frame)
    return frame_facts(core.decode_fixed(source.data))


def content_hash(data: Buffer, *, threads: int | None = None) -> str:
    """The content hash of a tensor's bytes, as in `FrameInfo.content_hash`."""
    source = byte_view(data)
    return hash_of(source.data, threads)


def exponent_histogram(dtype: str, data: Buffer, counts: list[int] | None = None) -> list[int]:
    """Count the exponents of a float tensor's bytes: 256 counts, added to `counts` when that is given.

    Raises:
        ValueError: frames do not split the words of this dtype as floats (docs/format.md), or a word is cut off.
    """
    source = byte_view(data)
    return core.exponent_histogram(dtype, source.data, counts or [0] * 256)


def _open_frame(frame: Any) -> tuple[memoryview, FrameReader]:
    """The blocks of the frame that a buffer begins with, and what reads them."""
    data = byte_view(frame).data
    reader = FrameReader(data)
    return blocks_of(reader, data), reader


def _decoded(
    blocks: memoryview, reader: FrameReader, start: int, stop: int, out: Any, *, base: Any, **options: Any
) -> Any:
    """`out`, or bytes, with content bytes [start, stop)."""
    if out is not None:
        target = byte_view(out, writable=True)
        old = check_base_size(reader.info, base)
        _decode(blocks, reader, start, stop, target.data, own=False, old=old, **options)
        return out
    # Before memory is allocated: that the range is one, and that a relative frame has as much of a base as it claims.
    reader.data_range(start, stop)
    old = check_base_size(reader.info, base)
    builder = BytesBuilder(stop - start)
    _decode(blocks, reader, start, stop, builder.data, own=True, old=old, **options)
    return builder.finish(stop - start)


def _decode(
    blocks: memoryview,
    reader: FrameReader,
    start: int,
    stop: int,
    out: memoryview,
    *,
    own: bool,
    old: TensorView | None,
    threads: int | None,
    verify: bool,
) -> None:
    """Decode content bytes [start, stop) into `out`, our `own` memory or the caller's; `old` is the base."""
    if old is not None and verify and (start, stop) == (0, reader.info.uncompressed_nbytes):
        decode_checked(reader, blocks, out, old.data, threads, own=own)
        return
    if old is not None:
        is_same_memory(old.data, out)
        if verify:
            check_base_hash(reader.info, hash_of(old.data, threads))
    data = None if old is None else old.data
    reader.decode(blocks, out, start=start, stop=stop, base=data, threads=threads, verify=verify)
