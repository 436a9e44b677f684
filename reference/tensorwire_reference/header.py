"""Sections "Frame", "Header", "Index" and, of "Base", what a header says of it."""

import math
import struct
from dataclasses import dataclass
from typing import Any

from .errors import LimitExceededError, TruncatedDataError, UnsupportedVersionError, require
from .hashes import h128
from .layouts import Dtype, parse_dtype

MAGIC = bytes.fromhex("935457460D0A1A0A")
VERSION = 1
PROFILES = ("enec", "fast", "compact", "resident")
RELATIVE = 1  # bit 0 of required_features
FIXED_NBYTES = 128
CHECKSUM = slice(120, 128)
UNIT = 32
MAX_NDIM = 64
MAX_DATA_NBYTES = 1 << 37
MAX_UNCOMPRESSED_NBYTES = 1 << 62
MAX_BITS = 1 << 65
MAX_NUM_BLOCKS = 1 << 32
BLOCK_WORDS = range(256, (1 << 18) + 1, 256)

_FIXED = struct.Struct("<8s4BI16sHHI3Q16s16s24s8s")


def ceil_to(x: int, a: int) -> int:
    """`x` rounded up to a multiple of `a`."""
    return -(-x // a) * a


@dataclass(frozen=True)
class Header:
    """The values of a header that describe the tensor; everything else follows from them and the index.

    `base_hash` is None in a plain frame.
    """

    profile: str
    dtype: Dtype
    block_words: int
    shape: tuple[int, ...]
    data_nbytes: int
    content_hash: bytes
    base_hash: bytes | None = None

    @property
    def uncompressed_nbytes(self) -> int:
        return (math.prod(self.shape) * self.dtype.bits + 7) // 8

    @property
    def num_words(self) -> int:
        return self.uncompressed_nbytes // self.dtype.word_nbytes

    @property
    def num_blocks(self) -> int:
        return -(-self.num_words // self.block_words)

    @property
    def index_start(self) -> int:
        return FIXED_NBYTES + 8 * len(self.shape)

    @property
    def index_nbytes(self) -> int:
        return 0 if self.base_hash is not None and self.data_nbytes == 0 else 8 * self.num_blocks

    @property
    def header_nbytes(self) -> int:
        return ceil_to(self.index_start + self.index_nbytes, UNIT)

    def words_of(self, block: int) -> slice:
        """Which words a block holds."""
        start = block * self.block_words
        return slice(start, min(start + self.block_words, self.num_words))

    def raw_nbytes(self, block: int) -> int:
        """Size of a block when it is stored."""
        words = self.words_of(block)
        return ceil_to((words.stop - words.start) * self.dtype.word_nbytes, UNIT)


@dataclass(frozen=True)
class Entry:
    """Where a block lies, in bytes from the first block, and the checksum that the index gives."""

    start: int
    end: int
    checksum: int


def pack_header(header: Header, entries: list[tuple[int, int]]) -> bytes:
    """The first `header_nbytes` bytes of a frame. `entries` are the index: (offset in units, checksum)."""
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        PROFILES.index(header.profile),
        0,
        len(header.shape),
        0 if header.base_hash is None else RELATIVE,
        header.dtype.name.encode("ascii"),
        header.dtype.bits,
        0,
        header.block_words,
        header.uncompressed_nbytes,
        header.data_nbytes,
        header.num_blocks,
        header.content_hash,
        header.base_hash or b"",
        b"",
        b"",
    )
    shape = struct.pack(f"<{len(header.shape)}Q", *header.shape)
    index = b"".join(struct.pack("<II", *entry) for entry in entries) if header.index_nbytes else b""
    return seal_header((fixed + shape + index).ljust(header.header_nbytes, b"\0"))


def seal_header(head: bytes) -> bytes:
    """Write the header checksum into the first `header_nbytes` bytes of a frame."""
    blank = head[: CHECKSUM.start] + bytes(8) + head[CHECKSUM.stop :]
    return head[: CHECKSUM.start] + h128(blank)[:8] + head[CHECKSUM.stop :]


def parse_header(frame: bytes) -> tuple[Header, list[Entry]]:
    """Steps 1 to 7 of the page's order of checks. Returns the header and the index."""
    require(MAGIC.startswith(frame[:8]), f"magic is {frame[:8].hex()}")
    if len(frame) < FIXED_NBYTES:
        raise TruncatedDataError(f"a frame has at least {FIXED_NBYTES} bytes, this one has {len(frame)}")
    fixed = _FIXED.unpack_from(frame)
    version, features = fixed[1], fixed[5]
    if version != VERSION:
        raise UnsupportedVersionError(f"version {version}; this decoder reads version {VERSION}")
    if features & ~RELATIVE:
        raise UnsupportedVersionError(f"required features {features:#x} are unknown")
    header, uncompressed_nbytes, num_blocks = _parse_fields(fixed, frame)
    require(
        uncompressed_nbytes == header.uncompressed_nbytes,
        f"uncompressed_nbytes {uncompressed_nbytes}; the shape says {header.uncompressed_nbytes}",
    )
    require(num_blocks == header.num_blocks, f"num_blocks {num_blocks}; the shape says {header.num_blocks}")
    if len(frame) < header.header_nbytes:
        raise TruncatedDataError(f"the frame ends inside its index: {len(frame)} of {header.header_nbytes} bytes")
    head = frame[: header.header_nbytes]
    require(seal_header(head) == head, "the header checksum does not match")
    index_end = header.index_start + header.index_nbytes
    require(not any(head[index_end:]), "padding behind the index is set")
    return header, _parse_index(head[header.index_start : index_end], header)


def _parse_fields(fixed: tuple[Any, ...], frame: bytes) -> tuple[Header, int, int]:
    """Steps 4 and 5: the fields in the order of their offsets, then the shape's limit."""
    (_, _, profile, order, ndim, features, name, bits, reserved1, block_words, uncompressed_nbytes, data_nbytes,
     num_blocks, content, base, reserved2, _) = fixed  # fmt: skip
    relative = bool(features & RELATIVE)
    require(profile < len(PROFILES), f"profile {profile}")
    require(not (relative and PROFILES[profile] == "resident"), "a relative frame of profile resident")
    if order != 0:
        raise UnsupportedVersionError(f"element order {order}")
    if ndim > MAX_NDIM:
        raise LimitExceededError(f"{ndim} dimensions; at most {MAX_NDIM}")
    dtype = parse_dtype(name, bits)
    require(reserved1 == 0, "reserved bytes are set")
    require(block_words in BLOCK_WORDS, f"block_words {block_words}")
    if uncompressed_nbytes > MAX_UNCOMPRESSED_NBYTES:
        raise LimitExceededError(f"{uncompressed_nbytes} uncompressed bytes; at most 2^62")
    if data_nbytes > MAX_DATA_NBYTES:
        raise LimitExceededError(f"{data_nbytes} bytes of blocks; at most 2^37")
    require(data_nbytes % UNIT == 0, f"data_nbytes {data_nbytes} is not a multiple of {UNIT}")
    if num_blocks > MAX_NUM_BLOCKS:
        raise LimitExceededError(f"{num_blocks} blocks; at most 2^32")
    require(relative or num_blocks <= data_nbytes // UNIT, f"{num_blocks} blocks in {data_nbytes} bytes")
    require(relative or not any(base), "a plain frame with a base hash")
    require(not any(reserved2), "reserved bytes are set")

    if len(frame) < FIXED_NBYTES + 8 * ndim:
        raise TruncatedDataError(f"the frame ends inside its shape: {len(frame)} bytes")
    shape = struct.unpack_from(f"<{ndim}Q", frame, FIXED_NBYTES)
    if math.prod(shape) * bits > MAX_BITS:
        raise LimitExceededError(f"shape {shape} of {bits}-bit elements has more than 2^65 bits")
    base_hash = base if relative else None
    header = Header(PROFILES[profile], dtype, block_words, shape, data_nbytes, content, base_hash)
    return header, uncompressed_nbytes, num_blocks


def _parse_index(index: bytes, header: Header) -> list[Entry]:
    """Step 7. Without an index the frame has no blocks, or all of them are same."""
    require(header.num_blocks > 0 or header.data_nbytes == 0, f"no blocks, but data_nbytes is {header.data_nbytes}")
    if not index:
        require(header.base_hash in (None, header.content_hash), "nothing changed, but base_hash is not content_hash")
        return []
    pairs = list(struct.iter_unpack("<II", index))
    require(pairs[0][0] == 0, f"the first block's offset is {pairs[0][0]}")
    ends = [offset for offset, _ in pairs[1:]] + [header.data_nbytes // UNIT]
    entries = []
    for block, ((offset, checksum), end) in enumerate(zip(pairs, ends, strict=True)):
        entry = Entry(UNIT * offset, UNIT * end, checksum)
        size = entry.end - entry.start
        require(size > 0 or (size == 0 and header.base_hash is not None), f"block {block} has {size} bytes")
        require(size > 0 or checksum == 0, f"block {block} is the same, but has a checksum")
        require(size <= header.raw_nbytes(block), f"block {block} has at most {header.raw_nbytes(block)} bytes")
        entries.append(entry)
    return entries
