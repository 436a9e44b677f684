"""What frames and blocks say of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from ...errors import CorruptDataError, TruncatedDataError
from . import core
from .layouts import as_layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..view.dtypes import Layout

Profile = Literal["enec", "fast", "compact", "resident"]


class FrameInfo(NamedTuple):
    """The facts in the header of a frame.

    Attributes:
        dtype: name as in safetensors, e.g. "BF16". It is a label, as `bits` is: decoders go by the layout.
        bits: bits per element.
        layout: how long words are, and how they are split.
        shape: sizes of the dimensions, outermost first; () for a scalar.
        profile: "enec", "fast", "compact" or "resident".
        uncompressed_nbytes: size of the tensor.
        header_nbytes: size of the header with index and extensions, up to the first block.
        data_nbytes: size of all blocks.
        padding_nbytes: zeros behind the blocks.
        frame_nbytes: size of the frame.
        block_alignment: every block has a multiple of so many bytes.
        frame_alignment: the blocks begin, and the frame ends, at a multiple of so many bytes.
        num_blocks: number of blocks.
        block_words: words in a full block.
        content_hash: 32 hexadecimal digits; depends on the uncompressed bytes alone. Not cryptographic.
        base_hash: of a relative frame, the content hash of the base that it is relative to; None for a plain frame.
    """

    dtype: str
    bits: int
    layout: Layout
    shape: tuple[int, ...]
    profile: Profile
    uncompressed_nbytes: int
    header_nbytes: int
    data_nbytes: int
    padding_nbytes: int
    frame_nbytes: int
    block_alignment: int
    frame_alignment: int
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
        offset: from the start of the frame, header included; `data_range` and `data_offset` of FrameReader count from
            the first block.
        nbytes: size of the block.
        rest_nbytes: size of the streams of the rest, which of a float is its sign and mantissa. Mantissa bits that are
            coded together with the exponent count here, one bit each, as they would take alone.
        kind_nbytes: size of the streams of the kind without those bits: of the exponents, where it has them.
        num_words: words in the block.
        kind: "stored", "constant", "enec", "cascade", "entropy", "plain", "zeros", "cascade2", "modal", "scaled" or
            "parts"; in a relative frame also "same", "sparse" or "dense".
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
_EXTENDED_KINDS = {1: "cascade2", 2: "modal", 3: "sparse", 4: "dense", 5: "parts", 6: "scaled"}
_EXTENDED, _SAME = 7, 255
_RESTS = ("verbatim", "trimmed", "bytes")


def frame_facts(frame: core.Frame) -> FrameInfo:
    """What a header says that was checked or written."""
    return FrameInfo(
        dtype=frame.dtype.decode("ascii"),
        bits=frame.bits,
        layout=as_layout(frame.layout),
        shape=tuple(frame.shape[: frame.ndim]),
        profile=cast("Profile", core.PROFILES[frame.profile]),
        uncompressed_nbytes=frame.uncompressed_nbytes,
        header_nbytes=frame.header_nbytes,
        data_nbytes=frame.data_nbytes,
        padding_nbytes=frame.padding_nbytes,
        frame_nbytes=frame.frame_nbytes,
        block_alignment=1 << frame.block_alignment,
        frame_alignment=1 << frame.frame_alignment,
        num_blocks=frame.num_blocks,
        block_words=frame.block_words,
        content_hash=bytes(frame.content_hash).hex(),
        base_hash=bytes(frame.base_hash).hex() if frame.features & core.BASE_RELATIVE else None,
    )


def block_facts(info: core.BlockInfo) -> BlockInfo:
    """A block's facts, in words."""
    return BlockInfo(
        info.offset,
        info.nbytes,
        info.rest_nbytes,
        info.kind_nbytes,
        info.num_words,
        _kind_name(info),
        _RESTS[info.rest],
        info.variant,
    )


def _kind_name(info: core.BlockInfo) -> str:
    if info.kind == _SAME:
        return "same"
    return _EXTENDED_KINDS[info.extended] if info.kind == _EXTENDED else _KINDS[info.kind]


def check_frame_size(info: FrameInfo, nbytes: int) -> None:
    """Raise TruncatedDataError or CorruptDataError if `nbytes` are not one whole frame."""
    if nbytes != info.frame_nbytes:
        error = TruncatedDataError if nbytes < info.frame_nbytes else CorruptDataError
        raise error(f"expected a frame of {info.frame_nbytes} bytes, got {nbytes}", byte=min(nbytes, info.frame_nbytes))


def check_padding(info: FrameInfo, padding: Buffer) -> None:
    """Raise CorruptDataError if the bytes behind the blocks are not zero."""
    if bytes(padding).strip(b"\0"):
        raise CorruptDataError("expected zeros behind the blocks", byte=info.header_nbytes + info.data_nbytes)
