"""Frames chunk by chunk: what layers that stream build on, thin over the C ABI.

Sizes and offsets are in bytes; "content" means the uncompressed bytes of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..._ground.copies import not_copied
from ..._ground.text import in_a_line, size
from ...errors import FormatError, TruncatedDataError
from ..view.arrays import MAX_BITS, byte_view, checked_shape
from ..view.dtypes import Layout, dtype_bits
from . import core
from .base_check import check_base_given, check_base_hash, check_base_nbytes, hash_of
from .facts import BlockInfo, FrameInfo, block_facts, check_frame_size, check_padding, frame_facts
from .form import (
    DEFAULT_ALIGNMENT,
    NO_HASH,
    checked_hash,
    new_form,
    new_frame,
    pack_extensions,
    parse_extensions,
)
from .layouts import word_bits
from .threads import num_threads

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..view.arrays import TensorView
    from .facts import Profile


_BLOCKS_AT_ONCE = 4096


class FrameEncoder:
    """Encode one tensor chunk by chunk.

    The frame is the header (known only at the end), then the blocks as they come, then zeros::

        encoder = FrameEncoder("BF16", shape)
        file.seek(position + encoder.header_nbytes)
        for chunk in chunks:                        # of any size
            nbytes = encoder.encode(chunk, out)     # out: at least encoder.data_bound(len(chunk)) bytes
            file.write(out[:nbytes])
        header = encoder.finish()                   # to be written at `position`
        file.write(bytes(encoder.info.padding_nbytes))

    Chunks are copied only where they divide a block. One thread at a time. The bytes are those of `compress`.
    Each byte of content and base is read once: the frame is sound even
    if others write to this memory meanwhile, and holds a mix of old and new values then. The header of a relative frame
    that changes nothing is shorter than `header_nbytes`, and no blocks follow it.

    Attributes:
        header_nbytes: size of the header; known from the start, but see above.
        block_nbytes: content of a block.
        uncompressed_nbytes: size of the tensor.
        consumed_nbytes: content taken so far.
        data_nbytes: size of the blocks so far.
        info: FrameInfo, with all sizes and the hash; there after `finish`.
    """

    __reduce_ex__ = not_copied("a frame that has begun", "make another one, and give it all chunks")

    def __repr__(self) -> str:
        return in_a_line(
            self,
            self._frame.dtype.decode(),
            tuple(self._frame.shape[: self._frame.ndim]),
            f"{size(self.consumed_nbytes)} of {size(self.uncompressed_nbytes)} in {size(self.data_nbytes)}",
        )

    def __init__(
        self,
        dtype: str,
        shape: Sequence[int],
        *,
        bits: int = 0,
        layout: Layout | None = None,
        profile: Profile = "fast",
        relative: bool = False,
        base_hash: str | None = None,
        block_alignment: int = DEFAULT_ALIGNMENT,
        frame_alignment: int | None = None,
        padding_nbytes: int = 0,
        extensions: Mapping[int, Buffer] | None = None,
        threads: int | None = None,
    ) -> None:
        """
        Args:
            bits: per element; may be 0 for the dtypes of safetensors. With a `layout` it may be 0 for other names too,
                and is that of a word then.
            layout: how words are split; by default that of the format's table, and bytes for other names.
            relative: the frame gets its base in chunks too.
            base_hash: the content hash of the base of a relative frame, if you know it: it is not hashed then. It is
                your promise. With another hash than the base has, the frame cannot be decompressed.
            block_alignment: bytes that every block has a multiple of: a power of two from 32 to 4096.
            frame_alignment: the blocks begin, and the frame ends, at a multiple of so many bytes: a power of two from
                `block_alignment`, the default, to 2 MiB.
            padding_nbytes: at least so many zeros behind the blocks, up to 2 MiB.
            extensions: bytes by tag, which readers skip that do not know the tag. Tags from 2**31 on are yours; their
                bytes begin with 8 that you have drawn at random once, by which you know your own. Tag 1 is the
                encoder's number, of 4 bytes; all others belong to the format.

        Raises:
            ValueError: dtype, bits, layout, shape, profile or one of the others is invalid, or contradicts another.
            TypeError: `shape` is no sequence of sizes, `layout` is no Layout, or `extensions` has no bytes by tag.
        """
        if base_hash is not None and not relative:
            raise ValueError("expected no base_hash for a plain frame; say relative=True, or leave it out")
        if not 0 <= bits <= MAX_BITS:
            raise ValueError(f"expected 1 to {MAX_BITS} bits per element, got {bits}")
        bits = bits or dtype_bits(dtype) or (0 if layout is None else word_bits(layout))
        self._extensions = pack_extensions(extensions or {})
        form = new_form(layout, block_alignment, frame_alignment, padding_nbytes, len(self._extensions))
        base_hash_bytes = checked_hash(base_hash) if base_hash is not None else NO_HASH if relative else None
        self._frame = new_frame(dtype, bits, checked_shape(shape), profile, form=form, base_hash=base_hash_bytes)
        self._threads = num_threads(threads)
        self.header_nbytes: int = self._frame.header_nbytes
        self.block_nbytes: int = self._frame.block_words * self._frame.layout.word_nbytes
        self.uncompressed_nbytes: int = self._frame.uncompressed_nbytes
        self.consumed_nbytes = 0
        self.data_nbytes = 0
        self._index = bytearray(8 * self._frame.num_blocks)
        self._leaves = core.Leaves(self.uncompressed_nbytes)
        self._relative = relative
        self._base_leaves = core.Leaves(self.uncompressed_nbytes) if relative and base_hash is None else None
        self._info: FrameInfo | None = None
        self._encoded_nbytes = 0  # whole blocks
        self._kept = b""  # content of the block that has begun
        self._base_kept = b""

    def data_bound(self, nbytes: int) -> int:
        """The most bytes that the next `encode`, of `nbytes` of content, can write."""
        return core.data_bound(self._frame, self.consumed_nbytes - self._encoded_nbytes + nbytes)

    def encode(self, chunk: Buffer, out: Buffer, *, base: Buffer | None = None) -> int:
        """Encode the next chunk of content; return the number of bytes put at the front of `out`.

        Args:
            base: the same bytes of the base; for a relative frame.

        Raises:
            ValueError: the chunk is more than what is left, `out` is smaller than `data_bound(len(chunk))`, read-only
                or in the memory of one of the others, or one of them is not contiguous; or `base` is missing or not as
                long as the chunk.
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
        origin = None if base is None else byte_view(base)
        old = self._checked_base(origin, len(view))
        core.check_apart(target, (view, "the chunk"), (old, "the base"))
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

    def _checked_base(self, base: TensorView | None, nbytes: int) -> memoryview | None:
        """The base of a chunk."""
        if base is None and self._relative:
            raise ValueError("expected base=, the same bytes of the base, for a relative frame, got none")
        if base is None:
            return None
        if not self._relative:
            raise ValueError("expected no base for a plain frame, got one; leave it out, or say relative=True")
        if len(base.data) != nbytes:
            raise ValueError(f"expected {nbytes} bytes of the base, got {len(base.data)}")
        return base.data

    def _keep(self, content: memoryview, base: memoryview | None, start: int, stop: int) -> None:
        """Keep bytes [start, stop) of a chunk for the block that they begin or go on with."""
        self._kept += content[start:stop]
        if base is not None:
            self._base_kept += base[start:stop]

    def _encode(self, content: Buffer, base: Buffer, out: memoryview) -> int:
        """Encode the next blocks."""
        written = core.encode_blocks(
            self._frame, self._encoded_nbytes, content, self.data_nbytes, out, self._index, self._leaves, self._threads,
            base if self._relative else None, self._base_leaves,
        )  # fmt: skip
        self._encoded_nbytes += memoryview(content).nbytes
        self.data_nbytes += written
        return written

    def finish(self) -> bytes:
        """The header, once all content is encoded.

        Raises:
            ValueError: content is missing.
        """
        if self.consumed_nbytes != self.uncompressed_nbytes:
            raise ValueError(f"expected {self.uncompressed_nbytes} bytes of content, got {self.consumed_nbytes}")
        if self._base_leaves is not None:
            self._frame.base_hash[:] = core.hash_root(self.uncompressed_nbytes, self._base_leaves.hashes)
        header = bytearray(self.header_nbytes)
        core.encode_header(self._frame, self.data_nbytes, self._index, self._leaves.hashes, self._extensions, header)
        self._info = frame_facts(self._frame)
        return bytes(header[: self._info.header_nbytes])

    @property
    def info(self) -> FrameInfo:
        if self._info is None:
            raise ValueError("expected finish() before info: hash and sizes are known once all content is encoded")
        return self._info


def same_frame(encoder: FrameEncoder) -> bytes:
    """The whole frame of what an encoder has encoded, relative to a base with the same content.

    Profile "resident" has no relative frames, so the frame has profile "fast" then.
    """
    info = encoder.info
    profile = "fast" if info.profile == "resident" else info.profile
    base_hash = bytes.fromhex(info.content_hash)
    frame = new_frame(info.dtype, info.bits, info.shape, profile, base_hash=base_hash)
    header = bytearray(frame.header_nbytes)
    core.encode_header(frame, 0, bytes(8 * frame.num_blocks), encoder._leaves.hashes, b"", header)
    return bytes(header[: frame.frame_nbytes])


class FrameReader:
    """Decode ranges of a frame whose bytes the caller fetches.

    ::

        nbytes = FrameReader.header_size(first_128_bytes)
        reader = FrameReader(first_nbytes)                     # checks all of the header
        lo, hi = reader.data_range(start, stop)                # of the blocks that hold this content
        data = fetch(reader.info.header_nbytes + lo, reader.info.header_nbytes + hi)
        reader.decode(data, out, start=start, stop=stop, data_offset=lo)

    Holds a copy of the header. Immutable: one reader serves many threads at once. It is a trusting reader
    (docs/format.md): what comes of the content hash, and of padding behind the blocks, which must be zero, is left to
    the caller.

    Attributes:
        info: FrameInfo.
        block_nbytes: content of a block; only the last one may have less.
        extensions: the bytes of each extension by its tag.
    """

    MIN_HEADER_NBYTES = core.FIXED_HEADER_NBYTES

    def __repr__(self) -> str:
        return in_a_line(
            self,
            self.info.dtype,
            self.info.shape,
            "relative" if self.info.base_hash else None,
            self.info.profile,
            f"{size(self.info.uncompressed_nbytes)} in {size(self.info.frame_nbytes)}",
        )

    @staticmethod
    def header_size(prefix: Buffer) -> int:
        """Size of the header, from the first 128 bytes of a frame or more.

        The prefix is checked as far as it goes; its checksum only if the shape is there. So check that this many bytes
        exist before allocating them.

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
        # A copy: the core trusts a header that it has checked, so no other code may write to it.
        header_bytes = bytes(view[: max(core.claimed_header_size(view), core.SHAPED_HEADER_NBYTES)])
        self._frame = core.decode_header(header_bytes)
        self._header = header_bytes[: self._frame.header_nbytes]
        self._info: FrameInfo | None = None
        self.block_nbytes: int = self._frame.block_words * self._frame.layout.word_nbytes

    @property
    def info(self) -> FrameInfo:
        if self._info is None:  # made when it is asked for: small calls do without
            self._info = frame_facts(self._frame)
        return self._info

    @property
    def extensions(self) -> dict[int, bytes]:
        end = self.info.header_nbytes
        return parse_extensions(self._header[end - self._frame.extensions_nbytes : end])

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
            CorruptDataError: a block is damaged, or the base is another than the frame needs.
            TruncatedDataError: `data` ends before the range does.
            BaseMismatchError: the frame is relative, and there is no base.
            ValueError: `out` does not fit, overlaps `data` or is read-only; a buffer is not contiguous; `data` begins
                behind the range, or `base` does not cover it; or there is a `base` and the frame is plain.
        """
        stop = self._frame.uncompressed_nbytes if stop is None else stop
        self._check_range(start, stop)
        if base is not None or self._frame.features & core.BASE_RELATIVE:  # `info` costs small calls, which need none
            check_base_given(self.info, base)
        if data_offset or base_offset:  # the checks would cost small calls, which have neither
            self._check_offset("data_offset", data_offset, self.info.data_nbytes)
            self._check_offset("base_offset", base_offset, self.info.uncompressed_nbytes)
        count = num_threads(threads)
        try:
            core.decode(
                self._frame, self._header, data, data_offset, start, stop, out, count, verify, base, base_offset,
                parallel=parallel,
            )  # fmt: skip
        except FormatError as error:
            self._advise(error, data, data_offset, base)
            raise

    def decode_and_hash(
        self, data: Buffer, out: Buffer, *, base: Buffer, hash_base: bool, threads: int | None = None
    ) -> tuple[str, str | None]:
        """Decode all content of a relative frame, as `decode` does with `verify`; return the content hash of what was
        written and, with `hash_base`, that of `base`. Both are taken while the bytes are in the cache.

        `out` may be `base` unless that is to be hashed.

        Raises:
            BaseMismatchError: `base` has not the size that the frame needs; or, with `hash_base`, another content hash,
                and a block cannot be decoded with it.
            CorruptDataError, TruncatedDataError, ValueError: as `decode`.
        """
        check_base_given(self.info, base)
        check_base_nbytes(self.info, memoryview(base).nbytes)
        try:
            content_hash, base_hash = core.decode_and_hash(
                self._frame, self._header, data, out, num_threads(threads), base, hash_base=hash_base
            )
        except FormatError as error:
            if hash_base:  # what is wrong may be the base alone
                check_base_hash(self.info, hash_of(base, threads))
            else:
                self._advise(error, data, 0, base)
            raise
        return content_hash.hex(), None if base_hash is None else base_hash.hex()

    def block_infos(
        self, data: Buffer, *, data_offset: int = 0, first: int = 0, count: int | None = None
    ) -> list[BlockInfo]:
        """Facts of blocks [first, first + count), by default to the last. `data` and `data_offset` as for `decode`.

        Raises:
            CorruptDataError: a block is damaged.
            TruncatedDataError: `data` ends before the blocks do.
            ValueError: there are no such blocks, or `data` begins behind them; or the frame has no index, and the
                blocks are more than 4,096, since their number is all that it says of them.
        """
        stop = self._block_after(first, count)
        if self.info.data_nbytes == 0 and stop - first > _BLOCKS_AT_ONCE:
            raise ValueError(
                f"expected at most {_BLOCKS_AT_ONCE} blocks of a frame without an index, got {stop - first}"
            )
        return [block_facts(info) for info in self._block_infos(data, data_offset, first, stop - first)]

    def check_blocks(self, data: Buffer, *, data_offset: int = 0, first: int = 0, count: int | None = None) -> None:
        """Check the checksum and the parameters of blocks [first, first + count), by default to the last. No base is
        needed. `data` and `data_offset` as for `decode`.

        Raises:
            CorruptDataError, TruncatedDataError, ValueError: as `block_infos`.
        """
        stop = self._block_after(first, count)
        if self.info.data_nbytes == 0:  # then all blocks are the base's, and there may be 2^32 of them
            return
        for block in range(first, stop, _BLOCKS_AT_ONCE):
            self._block_infos(data, data_offset, block, min(_BLOCKS_AT_ONCE, stop - block))

    def _block_after(self, first: int, count: int | None) -> int:
        """The block behind those [first, first + count), or ValueError."""
        num_blocks = self.info.num_blocks
        stop = num_blocks if count is None else first + count
        if not 0 <= first <= num_blocks or not first <= stop <= num_blocks:
            found = f"first={first}" if count is None else f"first={first}, count={count}"
            raise ValueError(f"expected blocks within [0, {num_blocks}), got {found}")
        return stop

    def _block_infos(self, data: Buffer, data_offset: int, first: int, count: int) -> list[core.BlockInfo]:
        self._check_offset("data_offset", data_offset, self.info.data_nbytes)
        try:
            return core.block_infos(self._frame, self._header, data, data_offset, first, count)
        except FormatError as error:
            self._advise(error, data, data_offset, None)
            raise

    def _advise(self, error: FormatError, data: Buffer, data_offset: int, base: Buffer | None) -> None:
        """Say what else than damage it may be: an argument. Raise what is wrong with the block if that is damaged."""
        if isinstance(error, TruncatedDataError):
            error.advice = "check data_offset, which counts from the first block; if it is right, fetch the data again"
        elif base is not None and error.block is not None:
            self._block_infos(data, data_offset, error.block, 1)
            error.advice = (
                f"the block is as it was written: give the base with content hash {self.info.base_hash}, as it was then"
            )

    @staticmethod
    def _check_offset(name: str, offset: int, most: int) -> None:
        if not 0 <= offset <= most:
            raise ValueError(f"expected a {name} of 0 to {most}, got {offset}")

    def _check_range(self, start: int, stop: int) -> None:
        nbytes = self._frame.uncompressed_nbytes
        if not 0 <= start <= stop <= nbytes:
            raise ValueError(f"expected a range within [0, {nbytes}), got [{start}, {stop})")


def blocks_of(reader: FrameReader, data: memoryview) -> memoryview:
    """The blocks in memory that begins with the frame. What is behind the frame is not read.

    Raises:
        TruncatedDataError: the memory ends before the frame does.
        CorruptDataError: its padding is not zero.
    """
    frame = reader._frame
    start, stop, end = frame.header_nbytes, frame.header_nbytes + frame.data_nbytes, frame.frame_nbytes
    if len(data) < end or stop < end:
        check_frame_size(reader.info, min(len(data), end))
        check_padding(reader.info, data[stop:end])
    return data[start:stop]


def is_labelled(reader: FrameReader, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether a frame has this dtype and shape."""
    frame = reader._frame
    return tuple(frame.shape[: frame.ndim]) == shape and str(frame.dtype, "ascii") == dtype
