"""Buffers and arrays to frames, and back: one tensor is one frame (docs/format.md).

`compress`, `decompress`, `decompress_range` and `frame_info` work on whole frames in memory. `FrameEncoder`, `FrameReader`
and `ContentHasher` do the same in pieces, for layers that stream; they are no public API.

Buffers are anything with the buffer protocol; sizes and offsets are in bytes; "content" means the uncompressed bytes of
a tensor. All functions are thread-safe and release the GIL while they work. `threads` defaults to all usable cores; a
call starts its own threads and ends them before it returns, so that a process may fork between calls. Equal input gives
equal frames whatever the machine, the CPU target and the number of threads.
"""

from __future__ import annotations

from . import _core
from ._arrays import PAGE_NBYTES, TensorView, as_array, byte_view, new_buffer, tensor_view
from .errors import CorruptDataError, LimitExceededError, TruncatedDataError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal

    from typing_extensions import Buffer

    Profile = Literal["enec", "fast", "compact"]
    Framework = Literal["numpy", "torch", "buffer"]

__all__ = [
    "FrameInfo",
    "compress",
    "decompress",
    "decompress_range",
    "frame_info",
]

STREAM_NBYTES = 1 << 20
"""Content is streamed in pieces of multiples of this; the last piece of a tensor is what is left."""


class FrameInfo:
    """What the header of a frame says.

    Attributes:
        dtype: name as in safetensors, e.g. "BF16"; a name that the format does not know is opaque bytes.
        bits: bits per element.
        shape: sizes of the dimensions, outermost first; () for a scalar.
        profile: "enec", "fast" or "compact".
        uncompressed_nbytes: size of the tensor.
        header_nbytes: size of header and index, up to the first block.
        data_nbytes: size of all blocks.
        frame_nbytes: size of the frame, its padding included.
        num_blocks: number of blocks.
        block_words: words in a full block.
        content_hash: 32 hexadecimal digits; depends on the uncompressed bytes alone. Not cryptographic.
    """

    dtype: str
    bits: int
    shape: tuple[int, ...]
    profile: Profile
    uncompressed_nbytes: int
    header_nbytes: int
    data_nbytes: int
    frame_nbytes: int
    num_blocks: int
    block_words: int
    content_hash: str

    @property
    def ratio(self) -> float:
        """Uncompressed size over the size of the frame; 0.0 for an empty tensor."""


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
            damaged data may decode to wrong values, but never reads or writes out of bounds.

    Returns:
        `out`, or a new array. Its memory is page-aligned from one page on.

    Raises:
        CorruptDataError, TruncatedDataError, UnsupportedVersionError: this release cannot decode the frame.
        LimitExceededError: the tensor is larger than `max_nbytes` or than the format allows.
        UnsupportedTensorError: the framework has no such dtype; or `out` is not on the CPU.
        ValueError: `out` does not fit.
    """


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


def frame_info(frame: Buffer) -> FrameInfo:
    """Read the header of a frame. It is checked, the blocks are neither needed nor touched.

    Args:
        frame: a frame, or as much of it as holds its header and index.
    """


def content_hash(data: Buffer, *, threads: int | None = None) -> str:
    """The content hash of a tensor's bytes, as in `FrameInfo.content_hash`."""


class ContentHasher:
    """The content hash of bytes that come in pieces."""

    def __init__(self, *, threads: int | None = None) -> None: ...

    def update(self, data: Buffer) -> None:
        """Add a piece. All pieces but the last must be multiples of 131,072 bytes (STREAM_NBYTES is one)."""

    def hexdigest(self) -> str:
        """The content hash of everything so far."""


class FrameEncoder:
    """Encode one tensor piece by piece.

    The frame is the header (known only at the end), the blocks as they come, and `trailer_nbytes` zero bytes::

        encoder = FrameEncoder("BF16", shape)
        file.seek(position + encoder.header_nbytes)
        for chunk in chunks:                        # multiples of STREAM_NBYTES but for the last
            nbytes = encoder.encode(chunk, out)     # out: at least encoder.data_bound(len(chunk)) bytes
            file.write(out[:nbytes])
        header = encoder.finish()                   # to be written at `position`
        file.write(bytes(encoder.trailer_nbytes))

    One thread at a time. The bytes are those of `compress`.

    Attributes:
        header_nbytes: size of header and index; known from the start.
        uncompressed_nbytes: size of the tensor.
        bound_nbytes: the most bytes that the whole frame can take.
        consumed_nbytes: content encoded so far.
        data_nbytes: size of the blocks so far.
        trailer_nbytes: size of the padding behind the blocks; valid after `finish`.
        frame_nbytes: size of the frame; valid after `finish`.
        info: FrameInfo; valid after `finish`.
    """

    def __init__(
        self,
        dtype: str,
        shape: Sequence[int],
        *,
        bits: int = 0,
        profile: Profile = "fast",
        threads: int | None = None,
    ) -> None:
        """`bits` per element may be 0 for the dtypes of safetensors; it is needed for other names.

        Raises:
            ValueError: dtype, bits, shape or profile is invalid.
        """

    def data_bound(self, nbytes: int) -> int:
        """The most bytes that the blocks of `nbytes` of content can take."""

    def encode(self, chunk: Buffer, out: Buffer) -> int:
        """Encode the next piece of content; return the number of bytes put at the front of `out`.

        Raises:
            ValueError: the piece is neither a multiple of STREAM_NBYTES nor the last one, is more than what is left,
                or `out` is read-only or smaller than `data_bound(len(chunk))`.
        """

    def finish(self) -> bytes:
        """Header and index, `header_nbytes` bytes, once all content is encoded.

        Raises:
            ValueError: content is missing.
        """


class FrameReader:
    """Decode parts of a frame whose bytes are fetched by somebody else.

    ::

        nbytes = FrameReader.header_size(first_128_bytes)
        reader = FrameReader(first_nbytes)                     # checks header and index
        lo, hi = reader.data_range(start, stop)                # of the blocks that hold this content
        data = fetch(reader.info.header_nbytes + lo, reader.info.header_nbytes + hi)
        reader.decode(data, out, start=start, stop=stop, data_offset=lo)

    Holds a copy of the header. Immutable: one reader serves many threads at once.

    Attributes:
        info: FrameInfo.
        trailer_nbytes: size of the zero padding behind the blocks.
    """

    MIN_HEADER_NBYTES = 128

    @staticmethod
    def header_size(prefix: Buffer) -> int:
        """Size of header and index, from the first 128 bytes of a frame or more.

        The prefix is checked as far as it goes, but not its checksum: check that this many bytes exist before
        allocating them.

        Raises:
            TruncatedDataError: the prefix is shorter than 128 bytes; otherwise as `FrameReader`.
        """

    def __init__(self, header: Buffer) -> None:
        """`header`: the frame up to its first block, or more of it.

        Raises:
            CorruptDataError, TruncatedDataError, UnsupportedVersionError, LimitExceededError
        """

    def data_range(self, start: int, stop: int) -> tuple[int, int]:
        """The bytes [lo, hi) of the blocks, counted from the first block, that content bytes [start, stop) need."""

    def decode(
        self,
        data: Buffer,
        out: Buffer,
        *,
        start: int = 0,
        stop: int | None = None,
        data_offset: int = 0,
        threads: int | None = None,
        verify: bool = True,
    ) -> None:
        """Decode content bytes [start, stop) into `out`, which has exactly that size.

        `data` holds the blocks' bytes from `data_offset` on and must cover ``data_range(start, stop)``.

        Raises:
            CorruptDataError: a block is damaged.
            ValueError: `out` does not fit, or `data` does not cover the range.
        """

    def check_trailer(self, trailer: Buffer) -> None:
        """Check the `trailer_nbytes` bytes behind the blocks.

        Raises:
            CorruptDataError: they are not zero.
            TruncatedDataError: there are fewer.
        """

    def block_infos(self, data: Buffer, *, data_offset: int = 0, first: int = 0, count: int | None = None) -> list[Any]:
        """Facts of blocks [first, first + count): see tw_block_info. `data` and `data_offset` as for `decode`."""


def exponent_histogram(dtype: str, data: Buffer, counts: list[int] | None = None) -> list[int]:
    """Count the exponents of a float tensor's bytes: 256 counts, added to `counts` when that is given.

    Raises:
        ValueError: the dtype has no exponent of its own (not one of BF16, F16, F32, F8_E4M3, F8_E5M2).
    """
