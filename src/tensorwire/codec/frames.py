"""Frames chunk by chunk: what layers that stream build on, thin over the C ABI.

Sizes and offsets are in bytes; "content" means the uncompressed bytes of a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from ..errors import CorruptDataError, TruncatedDataError
from . import core, products
from .arrays import byte_view, checked_shape
from .dtypes import dtype_bits
from .threads import num_threads

if TYPE_CHECKING:
    from typing_extensions import Buffer

Profile = Literal["enec", "fast", "compact", "resident"]

SAMPLE_NBYTES = core.SAMPLE_NBYTES
"""Content that decides on the size of blocks."""

_BLOCKS_AT_ONCE = 4096
_NO_HASH = bytes(16)


class FrameInfo(NamedTuple):
    """The facts in the header of a frame.

    Attributes:
        dtype: name as in safetensors, e.g. "BF16"; a name that the format does not know is opaque bytes.
        bits: bits per element.
        shape: sizes of the dimensions, outermost first; () for a scalar.
        profile: "enec", "fast", "compact" or "resident".
        uncompressed_nbytes: size of the tensor.
        header_nbytes: size of header and index, up to the first block.
        data_nbytes: size of all blocks.
        frame_nbytes: size of the frame.
        num_blocks: number of blocks.
        block_words: words in a full block.
        content_hash: 32 hexadecimal digits; depends on the uncompressed bytes alone. Not cryptographic.
        base_hash: of a relative frame, the content hash of the base that it is relative to; None for a plain frame.
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
    base_hash: str | None

    @property
    def ratio(self) -> float:
        """Uncompressed size over the size of the frame; 0.0 for an empty tensor."""
        return self.uncompressed_nbytes / self.frame_nbytes


class BlockInfo(NamedTuple):
    """The parts of a block.

    Attributes:
        offset: from the start of the frame.
        nbytes: size of the block.
        rest_nbytes: size of the streams of the rest, which of a float is its sign and mantissa. Mantissa bits that are
            coded together with the exponent count here, one bit each, as they would take alone.
        kind_nbytes: size of the streams of the kind without those bits: of the exponents, where it has them.
        num_words: words in the block.
        kind: "stored", "constant", "enec", "cascade", "entropy", "plain", "zeros", "cascade2" or "modal"; in a relative
            frame also "same", "sparse" or "dense".
        rest: "verbatim", "trimmed" or "bytes".
        variant: parameter of the kind, see docs/format.md.
    """

    offset: int
    nbytes: int
    rest_nbytes: int
    kind_nbytes: int
    num_words: int
    kind: str
    rest: str
    variant: int


_KINDS = ("stored", "constant", "enec", "cascade", "entropy", "plain", "zeros")
_EXTENDED_KINDS = {1: "cascade2", 2: "modal", 3: "sparse", 4: "dense"}
_EXTENDED, _SAME = 7, 255
_RESTS = ("verbatim", "trimmed", "bytes")


class FrameEncoder:
    """Encode one tensor chunk by chunk.

    The frame is the header (known only at the end), then the blocks as they come::

        encoder = FrameEncoder("BF16", shape)
        file.seek(position + encoder.header_nbytes)
        for chunk in chunks:                        # of any size
            nbytes = encoder.encode(chunk, out)     # out: at least encoder.data_bound(len(chunk)) bytes
            file.write(out[:nbytes])
        header = encoder.finish()                   # to be written at `position`

    Chunks are copied only where they divide a block. One thread at a time. The bytes are those of `compress` if the
    encoder is shown the beginning of the content. Each byte of content and base is read once: the frame is sound even
    if others write to this memory meanwhile, and holds words of different moments then. The header of a relative frame
    that changes nothing is shorter than `header_nbytes`, and no blocks follow it.

    Attributes:
        header_nbytes: size of header and index; known from the start, but see above.
        block_nbytes: content of a block.
        uncompressed_nbytes: size of the tensor.
        consumed_nbytes: content taken so far.
        data_nbytes: size of the blocks so far.
        info: FrameInfo, with all sizes and the hash; there after `finish`.
    """

    def __init__(
        self,
        dtype: str,
        shape: Sequence[int],
        *,
        bits: int = 0,
        profile: Profile = "fast",
        relative: bool = False,
        beginning: Buffer | None = None,
        base_beginning: Buffer | None = None,
        threads: int | None = None,
    ) -> None:
        """
        Args:
            bits: per element; may be 0 for the dtypes of safetensors, and is needed for other names.
            relative: the frame gets its base in chunks too.
            beginning: the first SAMPLE_NBYTES of the content or all of it. Profile "compact" fits the size of its
                blocks to them, and has blocks of the usual size without.
            base_beginning: the same bytes of the base; for a relative frame.

        Raises:
            ValueError: dtype, bits, shape or profile is invalid, or the beginning is too short.
        """
        bits = bits or dtype_bits(dtype)
        self._frame = new_frame(dtype, bits, checked_shape(shape), profile, relative=relative)
        if beginning is not None:
            old = None if base_beginning is None else byte_view(base_beginning).data
            core.frame_fit(self._frame, byte_view(beginning).data, old)
        self._threads = num_threads(threads)
        self.header_nbytes: int = self._frame.header_nbytes
        self.block_nbytes: int = self._frame.block_words * self._frame.word_nbytes
        self.uncompressed_nbytes: int = self._frame.uncompressed_nbytes
        self.consumed_nbytes = 0
        self.data_nbytes = 0
        self._index = bytearray(8 * self._frame.num_blocks)
        self._leaves = core.Leaves(self.uncompressed_nbytes)
        self._base_leaves = core.Leaves(self.uncompressed_nbytes) if relative else None
        self._encoded_nbytes = 0  # whole blocks
        self._kept = b""  # content of the block that has begun
        self._base_kept = b""

    def data_bound(self, nbytes: int) -> int:
        """The most bytes that the next `encode`, of `nbytes` of content, can write."""
        return core.data_bound(self.consumed_nbytes - self._encoded_nbytes + nbytes)

    def encode(self, chunk: Buffer, out: Buffer, *, base: Buffer | None = None) -> int:
        """Encode the next chunk of content; return the number of bytes put at the front of `out`.

        Args:
            base: the same bytes of the base; for a relative frame.

        Raises:
            ValueError: the chunk is more than what is left, `out` is smaller than `data_bound(len(chunk))` or
                read-only, or one of them is not contiguous; or `base` is missing or not as long as the chunk.
        """
        source, room = byte_view(chunk), byte_view(out, writable=True)
        view, target = source.data, room.data
        start, stop = self.consumed_nbytes, self.consumed_nbytes + len(view)
        if stop > self.uncompressed_nbytes:
            raise ValueError(
                f"expected the last {self.uncompressed_nbytes - start} bytes of the tensor, got {len(view)}"
            )
        if len(target) < self.data_bound(len(view)):
            raise ValueError(f"expected an output of {self.data_bound(len(view))} bytes, got {len(target)}")
        old = self._checked_base(base, len(view))
        end = stop if stop == self.uncompressed_nbytes else stop // self.block_nbytes * self.block_nbytes
        written = 0
        if self._kept and end > start:
            border = min(self._encoded_nbytes + self.block_nbytes, end)
            self._keep(view, old, 0, border - start)
            written = self._encode(self._kept, self._base_kept, target)
            self._kept = self._base_kept = b""
        first = max(self._encoded_nbytes, start)
        if end > first:
            part = b"" if old is None else old[first - start : end - start]
            written += self._encode(view[first - start : end - start], part, target[written:])
        self._keep(view, old, max(end, start) - start, len(view))
        self.consumed_nbytes = stop
        return written

    def _checked_base(self, base: Buffer | None, nbytes: int) -> memoryview | None:
        """The base of a chunk."""
        if (base is None) != (self._base_leaves is None):
            raise ValueError("expected a base for a relative frame, and none for a plain one")
        if base is None:
            return None
        view = byte_view(base).data
        if len(view) != nbytes:
            raise ValueError(f"expected {nbytes} bytes of the base, got {len(view)}")
        return view

    def _keep(self, content: memoryview, base: memoryview | None, start: int, stop: int) -> None:
        """Keep bytes [start, stop) of a chunk for the block that they begin or go on with."""
        self._kept += content[start:stop]
        if base is not None:
            self._base_kept += base[start:stop]

    def _encode(self, content: Buffer, base: Buffer, out: memoryview) -> int:
        """Encode the next blocks."""
        written = core.encode_blocks(
            self._frame, self._encoded_nbytes, content, self.data_nbytes, out, self._index, self._leaves, self._threads,
            None if self._base_leaves is None else base, self._base_leaves,
        )  # fmt: skip
        self._encoded_nbytes += memoryview(content).nbytes
        self.data_nbytes += written
        return written

    def finish(self) -> bytes:
        """Header and index, once all content is encoded.

        Raises:
            ValueError: content is missing.
        """
        if self.consumed_nbytes != self.uncompressed_nbytes:
            raise ValueError(f"expected {self.uncompressed_nbytes} bytes of content, got {self.consumed_nbytes}")
        if self._base_leaves is not None:
            self._frame.base_hash[:] = core.hash_root(self.uncompressed_nbytes, self._base_leaves.hashes)
        header = bytearray(self.header_nbytes)
        core.encode_header(self._frame, self.data_nbytes, self._index, self._leaves.hashes, header)
        self.info = _frame_info(self._frame)
        return bytes(header[: self.info.header_nbytes])


class FrameReader:
    """Decode ranges of a frame whose bytes are fetched by somebody else.

    ::

        nbytes = FrameReader.header_size(first_128_bytes)
        reader = FrameReader(first_nbytes)                     # checks header and index
        lo, hi = reader.data_range(start, stop)                # of the blocks that hold this content
        data = fetch(reader.info.header_nbytes + lo, reader.info.header_nbytes + hi)
        reader.decode(data, out, start=start, stop=stop, data_offset=lo)

    Holds a copy of the header. Immutable: one reader serves many threads at once.

    Attributes:
        info: FrameInfo.
        block_nbytes: content of a block; only the last one may have less.
    """

    MIN_HEADER_NBYTES = core.FIXED_HEADER_NBYTES

    @staticmethod
    def header_size(prefix: Buffer) -> int:
        """Size of header and index, from the first 128 bytes of a frame or more.

        The prefix is checked as far as it goes, but not its checksum: check that this many bytes exist before
        allocating them.

        Raises:
            TruncatedDataError: the prefix is shorter than 128 bytes; otherwise as `FrameReader`.
        """
        return core.header_size(prefix)

    def __init__(self, header: Buffer) -> None:
        """`header`: the frame up to its first block, or more of it.

        Raises:
            CorruptDataError, TruncatedDataError, UnsupportedVersionError, LimitExceededError
        """
        view = memoryview(header).cast("B")
        # A copy: the core trusts a header that it has checked, so nobody else may write to it.
        self._header = bytes(view[: core.header_size(view[: self.MIN_HEADER_NBYTES])])
        self._frame = core.decode_header(self._header)
        self.info = _frame_info(self._frame)
        self.block_nbytes: int = self._frame.block_words * self._frame.word_nbytes

    def data_range(self, start: int, stop: int) -> tuple[int, int]:
        """The bytes [lo, hi) of the blocks, counted from the first block, that content bytes [start, stop) need.

        Raises:
            ValueError: not 0 <= start <= stop <= uncompressed_nbytes.
        """
        self._check_range(start, stop)
        return core.block_range(self._frame, self._header, start, stop)

    def base_range(self, start: int, stop: int) -> tuple[int, int]:
        """The content bytes [lo, hi) of the base that content bytes [start, stop) of a relative frame need: those of
        the same blocks.

        Raises:
            ValueError: not 0 <= start <= stop <= uncompressed_nbytes.
        """
        self._check_range(start, stop)
        size = self.block_nbytes
        return start // size * size, min(-(-stop // size) * size, self.info.uncompressed_nbytes)

    def decode(
        self,
        data: Buffer,
        out: Buffer,
        *,
        start: int = 0,
        stop: int | None = None,
        data_offset: int = 0,
        base: Buffer | None = None,
        base_offset: int = 0,
        threads: int | None = None,
        parallel: int | None = None,
        verify: bool = True,
    ) -> None:
        """Decode content bytes [start, stop) into `out`, which has exactly that size.

        `data` holds the blocks' bytes from `data_offset` on and must cover ``data_range(start, stop)``. For a relative
        frame `base` holds the base's content from `base_offset` on and must cover ``base_range(start, stop)``. It is
        trusted to be the base. `out` may be the same memory if [start, stop) are whole blocks. `parallel` is the
        address of a function like GOMP_parallel, whose threads are used instead of new ones.

        Raises:
            CorruptDataError: a block is damaged.
            TruncatedDataError: `data` does not cover the range.
            ValueError: `out` does not fit or overlaps `data`.
            BufferError: `out` is read-only, or one of them is not contiguous.
        """
        stop = self.info.uncompressed_nbytes if stop is None else stop
        self._check_range(start, stop)
        count = num_threads(threads)
        core.decode(
            self._frame, self._header, data, data_offset, start, stop, out, count, verify, base, base_offset,
            parallel=parallel,
        )  # fmt: skip

    def placed(self, data: Buffer) -> products.PlacedFrame:
        """This frame, plain, with all its blocks, which stay where they are: for calls with addresses."""
        return products.PlacedFrame(self._frame, self._header, data)

    def decode_and_hash(
        self, data: Buffer, out: Buffer, *, base: Buffer, hash_base: bool, threads: int | None = None
    ) -> tuple[str, str | None]:
        """Decode all content of a relative frame, as `decode` does with `verify`; return the content hash of what was
        written and, with `hash_base`, that of `base`. Both are taken while the bytes are in the cache.

        `out` may be `base` unless that is to be hashed.
        """
        nbytes = self.info.uncompressed_nbytes
        leaves = bytearray(16 * -(-nbytes // core.LEAF_NBYTES))
        base_leaves = bytearray(len(leaves)) if hash_base else None
        core.decode(
            self._frame, self._header, data, 0, 0, nbytes, out, num_threads(threads), True, base, 0, leaves, base_leaves
        )
        old = None if base_leaves is None else core.hash_root(nbytes, base_leaves).hex()
        return core.hash_root(nbytes, leaves).hex(), old

    def block_infos(
        self, data: Buffer, *, data_offset: int = 0, first: int = 0, count: int | None = None
    ) -> list[BlockInfo]:
        """Facts of blocks [first, first + count), by default to the last. `data` and `data_offset` as for `decode`.

        Raises:
            CorruptDataError: a block is damaged.
            ValueError: there are no such blocks, or `data` does not cover them.
        """
        count = self.info.num_blocks - first if count is None else count
        if not 0 <= first <= first + count <= self.info.num_blocks:
            raise ValueError(f"expected blocks within [0, {self.info.num_blocks}), got {count} from {first} on")
        infos = core.block_infos(self._frame, self._header, data, data_offset, first, count)
        return [
            BlockInfo(
                info.offset,
                info.nbytes,
                info.rest_nbytes,
                info.kind_nbytes,
                info.num_words,
                _kind_name(info),
                _RESTS[info.rest],
                info.variant,
            )
            for info in infos
        ]

    def check_blocks(self, data: Buffer, *, data_offset: int = 0, first: int = 0, count: int | None = None) -> None:
        """Check the checksum and the parameters of blocks [first, first + count), by default to the last. No base is
        needed. `data` and `data_offset` as for `decode`.

        Raises:
            CorruptDataError: a block is damaged.
        """
        if self.info.data_nbytes == 0:  # then all blocks are the base's, and there may be 2^32 of them
            return
        stop = self.info.num_blocks if count is None else first + count
        for block in range(first, stop, _BLOCKS_AT_ONCE):
            number = min(_BLOCKS_AT_ONCE, stop - block)
            core.block_infos(self._frame, self._header, data, data_offset, block, number)

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.info.uncompressed_nbytes:
            raise ValueError(f"expected a range within [0, {self.info.uncompressed_nbytes}), got [{start}, {stop})")


def _kind_name(info: core.BlockInfo) -> str:
    if info.kind == _SAME:
        return "same"
    return _EXTENDED_KINDS[info.extended] if info.kind == _EXTENDED else _KINDS[info.kind]


def check_frame_size(info: FrameInfo, nbytes: int) -> None:
    """Raise TruncatedDataError or CorruptDataError if `nbytes` are not one whole frame."""
    if nbytes != info.frame_nbytes:
        error = TruncatedDataError if nbytes < info.frame_nbytes else CorruptDataError
        raise error(f"expected a frame of {info.frame_nbytes} bytes, got {nbytes}", byte=min(nbytes, info.frame_nbytes))


def new_frame(dtype: str, bits: int, shape: tuple[int, ...], profile: str, *, relative: bool = False) -> core.Frame:
    """The frame of a tensor that is still to be encoded, `relative` to a base whose hash is not known yet or not.

    Raises:
        ValueError: one of the arguments is invalid.
    """
    if profile not in core.PROFILES:
        raise ValueError(f"expected one of the profiles {', '.join(core.PROFILES)}, got {profile!r}")
    return core.frame_init(dtype, bits, shape, core.PROFILES.index(profile), base_hash=_NO_HASH if relative else None)


def _frame_info(frame: core.Frame) -> FrameInfo:
    return FrameInfo(
        dtype=frame.dtype.decode("ascii"),
        bits=frame.bits,
        shape=tuple(frame.shape[: frame.ndim]),
        profile=cast("Profile", core.PROFILES[frame.profile]),
        uncompressed_nbytes=frame.uncompressed_nbytes,
        header_nbytes=frame.header_nbytes,
        data_nbytes=frame.data_nbytes,
        frame_nbytes=frame.frame_nbytes,
        num_blocks=frame.num_blocks,
        block_words=frame.block_words,
        content_hash=bytes(frame.content_hash).hex(),
        base_hash=bytes(frame.base_hash).hex() if frame.features & core.BASE_RELATIVE else None,
    )
