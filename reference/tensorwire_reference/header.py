"""Section "Fixed part and shape", steps 1 to 6 of its order of checks, and the two checksums."""

import math
import struct
from dataclasses import dataclass, field
from typing import Any

from .errors import CorruptDataError, LimitExceededError, TruncatedDataError, UnsupportedVersionError, require
from .hashes import h128
from .layouts import SPLITS, Layout, check_layout

MAGIC = bytes.fromhex("935457460D0A1A0A")
VERSION = 1
PROFILES = ("enec", "fast", "compact", "resident")
RELATIVE = 1  # bit 0 of required_features
FIXED_NBYTES = 128
LAYOUT = slice(24, 29)
CHECKSUMS = slice(112, 128)
HEADER_CHECKSUM = slice(120, 128)
LEAST_ALIGNMENT = 32
BLOCK_ALIGNMENTS = range(5, 13)  # these two as powers of two
MOST_FRAME_ALIGNMENT = 21
MAX_NDIM = 64
MAX_BITS_PER_ELEMENT = 1024
MAX_UNCOMPRESSED_NBYTES = 1 << 53
MAX_HEADER_NBYTES = 1 << 37
MAX_DATA_UNITS = (1 << 31) - 1
MAX_PADDING_NBYTES = 1 << 22
MAX_BITS = 1 << 56
MAX_NUM_BLOCKS = 1 << 32
BLOCK_WORDS = range(256, (1 << 18) + 1, 256)
CHARACTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")

_FIXED = struct.Struct("<8s4B2I4B6BH16s3Q2I16s16s8s8s")


def ceil_to(x: int, a: int) -> int:
    """`x` rounded up to a multiple of `a`."""
    return -(-x // a) * a


@dataclass(frozen=True)
class Header:
    """The values of a header, and its extensions by tag. `base_hash` is None in a plain frame; alignments in bytes."""

    profile: str
    dtype: str
    bits: int
    layout: Layout
    block_words: int
    shape: tuple[int, ...]
    content_hash: bytes
    base_hash: bytes | None = None
    block_alignment: int = LEAST_ALIGNMENT
    frame_alignment: int = LEAST_ALIGNMENT
    optional_features: int = 0
    header_nbytes: int = 0
    data_nbytes: int = 0
    padding_nbytes: int = 0
    extensions: dict[int, bytes] = field(default_factory=dict)

    @property
    def uncompressed_nbytes(self) -> int:
        return (math.prod(self.shape) * self.bits + 7) // 8

    @property
    def num_words(self) -> int:
        return self.uncompressed_nbytes // self.layout.word_nbytes

    @property
    def num_blocks(self) -> int:
        return -(-self.num_words // self.block_words)

    @property
    def index_start(self) -> int:
        return FIXED_NBYTES + 8 * len(self.shape)

    @property
    def index_end(self) -> int:
        return self.index_start + (0 if self.base_hash is not None and self.data_nbytes == 0 else 8 * self.num_blocks)

    @property
    def frame_nbytes(self) -> int:
        return self.header_nbytes + self.data_nbytes + self.padding_nbytes

    def words_of(self, block: int) -> slice:
        """Which words a block holds."""
        start = block * self.block_words
        return slice(start, min(start + self.block_words, self.num_words))

    def raw_nbytes(self, block: int) -> int:
        """Size of a block when it is stored."""
        words = self.words_of(block)
        return ceil_to((words.stop - words.start) * self.layout.word_nbytes, self.block_alignment)


def pack_header(header: Header, index_and_extensions: bytes) -> bytes:
    """The first `header_nbytes` bytes of a frame."""
    layout = header.layout
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        PROFILES.index(header.profile),
        0,
        len(header.shape),
        0 if header.base_hash is None else RELATIVE,
        header.optional_features,
        0,
        header.block_alignment.bit_length() - 1,
        header.frame_alignment.bit_length() - 1,
        0,
        layout.word_nbytes,
        layout.exponent_bits,
        layout.rest_bits,
        SPLITS.index(layout.split),
        layout.ordered,
        0,
        header.bits,
        header.dtype.encode("ascii"),
        header.uncompressed_nbytes,
        header.header_nbytes,
        header.data_nbytes,
        header.block_words,
        header.padding_nbytes,
        header.content_hash,
        header.base_hash or b"",
        b"",
        b"",
    )
    shape = struct.pack(f"<{len(header.shape)}Q", *header.shape)
    return seal_header((fixed + shape + index_and_extensions).ljust(header.header_nbytes, b"\0"))


def seal_header(head: bytes) -> bytes:
    """Write both checksums into the first `header_nbytes` bytes of a frame."""
    shape_end = FIXED_NBYTES + 8 * head[11]
    start = head[: CHECKSUMS.start] + h128(head[shape_end:])[:8] + bytes(8) + head[CHECKSUMS.stop : shape_end]
    return start[: HEADER_CHECKSUM.start] + h128(start)[:8] + head[HEADER_CHECKSUM.stop :]


def parse_fixed(frame: bytes) -> Header:
    """Steps 1 to 6: fixed part and shape, which can be trusted from then on. The header has no extensions yet."""
    require(MAGIC.startswith(frame[:8]), f"magic is {frame[:8].hex()}")
    if len(frame) < FIXED_NBYTES:
        raise TruncatedDataError(f"a frame has at least {FIXED_NBYTES} bytes, this one has {len(frame)}")
    fields = _FIXED.unpack_from(frame)
    _check_version(version=fields[1], features=fields[5])
    header, uncompressed_nbytes = _parse_fields(fields, frame)
    _check_sizes(header, uncompressed_nbytes)
    start = frame[: header.index_start]
    blank = start[: HEADER_CHECKSUM.start] + bytes(8) + start[HEADER_CHECKSUM.stop :]
    require(h128(blank)[:8] == start[HEADER_CHECKSUM], "the header checksum does not match")
    return header


def _check_version(version: int, features: int) -> None:
    """Steps 2 and 3."""
    if version != VERSION:
        raise UnsupportedVersionError(f"version {version}; this decoder reads version {VERSION}")
    if features & ~RELATIVE:
        raise UnsupportedVersionError(f"required features {features:#x} are unknown")


def _parse_fields(fields: tuple[Any, ...], frame: bytes) -> tuple[Header, int]:
    """Step 4, the fields in the order of their offsets, and the shape with its limit. Also uncompressed_nbytes."""
    (_, _, profile, order, ndim, required_features, optional_features, algorithm, block_log2, frame_log2, reserved_23,
     word_nbytes, exponent_bits, rest_bits, split, ordered, reserved_29, bits, name, uncompressed_nbytes,
     header_nbytes, data_nbytes, block_words, padding_nbytes, content, base, _, _) = fields  # fmt: skip
    relative = bool(required_features & RELATIVE)
    require(profile < len(PROFILES), f"profile {profile}")
    require(not (relative and PROFILES[profile] == "resident"), "a relative frame of profile resident")
    if order != 0:
        raise UnsupportedVersionError(f"element order {order}")
    _limit(ndim, MAX_NDIM, "dimensions")
    if algorithm != 0:
        raise UnsupportedVersionError(f"hash algorithm {algorithm}")
    require(block_log2 in BLOCK_ALIGNMENTS, f"a block alignment of 2^{block_log2}")
    require(block_log2 <= frame_log2 <= MOST_FRAME_ALIGNMENT, f"a frame alignment of 2^{frame_log2}")
    require(reserved_23 == 0, "byte 23 is reserved, and set")
    layout = _parse_layout(word_nbytes, exponent_bits, rest_bits, split, ordered)
    require(reserved_29 == 0, "byte 29 is reserved, and set")
    _check_label(name.rstrip(b"\0"), bits, layout)
    _limit(uncompressed_nbytes, MAX_UNCOMPRESSED_NBYTES, "uncompressed bytes")
    unit, frame_alignment = 1 << block_log2, 1 << frame_log2
    _limit(header_nbytes, MAX_HEADER_NBYTES, "bytes of header")
    require(header_nbytes % frame_alignment == 0, f"header_nbytes {header_nbytes} is not a multiple of the alignment")
    _limit(data_nbytes, MAX_DATA_UNITS * unit, "bytes of blocks")
    require(data_nbytes % unit == 0, f"data_nbytes {data_nbytes} is not a multiple of {unit}")
    require(block_words in BLOCK_WORDS, f"block_words {block_words}")
    nbytes = header_nbytes + data_nbytes + padding_nbytes
    require(padding_nbytes <= MAX_PADDING_NBYTES, f"{padding_nbytes} bytes of padding")
    require(nbytes % frame_alignment == 0, f"a frame of {nbytes} bytes, aligned to {frame_alignment}")
    require(relative or not any(base), "a plain frame with a base hash")
    return (
        Header(
            profile=PROFILES[profile],
            dtype=name.rstrip(b"\0").decode("ascii"),
            bits=bits,
            layout=layout,
            block_words=block_words,
            shape=_parse_shape(frame, ndim, bits),
            content_hash=content,
            base_hash=base if relative else None,
            block_alignment=unit,
            frame_alignment=frame_alignment,
            optional_features=optional_features,
            header_nbytes=header_nbytes,
            data_nbytes=data_nbytes,
            padding_nbytes=padding_nbytes,
        ),
        uncompressed_nbytes,
    )


def _limit(value: int, most: int, what: str) -> None:
    if value > most:
        raise LimitExceededError(f"{value} {what}; at most {most}")


def _parse_layout(word_nbytes: int, exponent_bits: int, rest_bits: int, split: int, ordered: int) -> Layout:
    if split >= len(SPLITS):
        raise CorruptDataError(f"split {split}")
    require(ordered <= 1, f"ordered {ordered}")
    layout = Layout(word_nbytes, exponent_bits, rest_bits, SPLITS[split], bool(ordered))
    check_layout(layout)
    return layout


def _check_label(name: bytes, bits: int, layout: Layout) -> None:
    """The bits per element, and the dtype's name without its zeros."""
    require(1 <= bits <= MAX_BITS_PER_ELEMENT, f"{bits} bits per element")
    whole = layout.word_nbytes == 1 or bits % layout.word_bits == 0
    require(whole, f"{bits} bits per element in words of {layout.word_bits}")
    require(len(name) > 0 and CHARACTERS.issuperset(name), f"dtype {name!r}")


def _parse_shape(frame: bytes, ndim: int, bits: int) -> tuple[int, ...]:
    if len(frame) < FIXED_NBYTES + 8 * ndim:
        raise TruncatedDataError(f"the frame ends inside its shape: {len(frame)} bytes")
    shape = struct.unpack_from(f"<{ndim}Q", frame, FIXED_NBYTES)
    _limit(math.prod(shape) * bits, MAX_BITS, "bits")
    return shape


def _check_sizes(header: Header, uncompressed_nbytes: int) -> None:
    """What step 5 asks of the sizes that follow from the shape."""
    expected = header.uncompressed_nbytes
    require(uncompressed_nbytes == expected, f"uncompressed_nbytes {uncompressed_nbytes}; the shape says {expected}")
    _limit(header.num_blocks, MAX_NUM_BLOCKS, "blocks")
    units = header.data_nbytes // header.block_alignment
    require(header.base_hash is not None or header.num_blocks <= units, f"{header.num_blocks} blocks in {units} units")
    room = header.header_nbytes >= header.index_end
    require(room, f"header_nbytes {header.header_nbytes}, but the index ends at {header.index_end}")
