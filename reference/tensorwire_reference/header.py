"""Sections "Frame", "Header", "Index" and "Dtypes"."""

import math
import struct
from dataclasses import dataclass

from .errors import CorruptDataError, LimitExceededError, TruncatedDataError, UnsupportedVersionError, require
from .hashes import h128

MAGIC = bytes.fromhex("935457460D0A1A0A")
VERSION = 0
PROFILES = ("enec", "fast", "compact")
FIXED_NBYTES = 128
CHECKSUM = slice(120, 128)
ALIGNMENT = 64
UNIT = 32
MAX_NDIM = 64
MAX_DATA_NBYTES = 1 << 37
MAX_UNCOMPRESSED_NBYTES = 1 << 62
MAX_BITS = 1 << 65
MAX_NUM_BLOCKS = MAX_DATA_NBYTES // UNIT
BLOCK_LOG2 = range(8, 19)
DTYPE_CHARACTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")

_FIXED = struct.Struct("<8s4BI16sHB5s3Q16s16s24s8s")


@dataclass(frozen=True)
class Dtype:
    """How elements become words. `exponent_bits` is 0 for everything that is not a float of 8, 16 or 32 bits."""

    name: str
    bits: int
    word_nbytes: int
    exponent_bits: int = 0
    mantissa_bits: int = 0


_KNOWN = {
    dtype.name: dtype
    for dtype in (
        Dtype("BF16", 16, 2, 8, 7),
        Dtype("F16", 16, 2, 5, 10),
        Dtype("F32", 32, 4, 8, 23),
        Dtype("F8_E4M3", 8, 1, 4, 3),
        Dtype("F8_E5M2", 8, 1, 5, 2),
        *(Dtype(name, 64, 8) for name in ("F64", "I64", "U64")),
        *(Dtype(name, 32, 4) for name in ("I32", "U32")),
        *(Dtype(name, 16, 2) for name in ("I16", "U16")),
        *(Dtype(name, 8, 1) for name in ("I8", "U8", "BOOL")),
    )
}


def dtype_of(name: str, bits: int | None = None) -> Dtype:
    """The table's row, or a row of byte words for any other name. Raises ValueError when `bits` is wrong or missing."""
    known = _KNOWN.get(name)
    if known is None and bits is None:
        raise ValueError(f"dtype {name!r} is not in the table: pass its bits per element")
    if known is not None and bits not in (None, known.bits):
        raise ValueError(f"dtype {name} has {known.bits} bits, not {bits}")
    return known or Dtype(name, bits or 0, 1)


def ceil_to(x: int, a: int) -> int:
    """`x` rounded up to a multiple of `a`."""
    return -(-x // a) * a


@dataclass(frozen=True)
class Header:
    """The values of a header that describe the tensor; everything else follows from them and the index."""

    profile: str
    dtype: Dtype
    block_log2: int
    shape: tuple[int, ...]
    data_nbytes: int
    content_hash: bytes

    @property
    def uncompressed_nbytes(self) -> int:
        return (math.prod(self.shape) * self.dtype.bits + 7) // 8

    @property
    def num_words(self) -> int:
        return self.uncompressed_nbytes // self.dtype.word_nbytes

    @property
    def num_blocks(self) -> int:
        return -(-self.num_words >> self.block_log2)

    @property
    def index_start(self) -> int:
        return FIXED_NBYTES + 8 * len(self.shape)

    @property
    def header_nbytes(self) -> int:
        return ceil_to(self.index_start + 8 * self.num_blocks, ALIGNMENT)

    def block_words(self, block: int) -> int:
        """Number of words of a block."""
        return min(1 << self.block_log2, self.num_words - (block << self.block_log2))


def pack_header(header: Header, entries: list[tuple[int, int]]) -> bytes:
    """The first `header_nbytes` bytes of a frame. `entries` are the index: (offset in units, checksum)."""
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        PROFILES.index(header.profile),
        0,
        len(header.shape),
        0,
        header.dtype.name.encode("ascii"),
        header.dtype.bits,
        header.block_log2,
        b"",
        header.uncompressed_nbytes,
        header.data_nbytes,
        header.num_blocks,
        header.content_hash,
        b"",
        b"",
        b"",
    )
    shape = struct.pack(f"<{len(header.shape)}Q", *header.shape)
    index = b"".join(struct.pack("<II", *entry) for entry in entries)
    return seal_header((fixed + shape + index).ljust(header.header_nbytes, b"\0"))


def seal_header(head: bytes) -> bytes:
    """Write the header checksum into the first `header_nbytes` bytes of a frame."""
    blank = head[: CHECKSUM.start] + bytes(8) + head[CHECKSUM.stop :]
    return head[: CHECKSUM.start] + h128(blank)[:8] + head[CHECKSUM.stop :]


def parse_header(frame: bytes) -> tuple[Header, list[tuple[int, int]]]:
    """Check everything before the blocks, in the page's order. Returns the header and the index."""
    require(MAGIC.startswith(frame[:8]), f"magic is {frame[:8].hex()}")
    if len(frame) < FIXED_NBYTES:
        raise TruncatedDataError(f"a frame has at least {FIXED_NBYTES} bytes, this one has {len(frame)}")
    (_, version, profile, order, ndim, features, name, bits, block_log2, reserved1, uncompressed_nbytes,
     data_nbytes, num_blocks, content, base, reserved2, _) = _FIXED.unpack_from(frame)  # fmt: skip
    if version != VERSION:
        raise UnsupportedVersionError(f"version {version}; this decoder reads version {VERSION}")
    if features:
        raise UnsupportedVersionError(f"required features {features:#x} are unknown")
    require(profile < len(PROFILES), f"profile {profile}")
    require(order == 0, f"element order {order}")
    if ndim > MAX_NDIM:
        raise LimitExceededError(f"{ndim} dimensions; at most {MAX_NDIM}")
    dtype = _parse_dtype(name, bits)
    require(block_log2 in BLOCK_LOG2, f"block_log2 {block_log2} is not 8..18")
    require(not any(reserved1 + base + reserved2), "reserved bytes are set")
    if uncompressed_nbytes > MAX_UNCOMPRESSED_NBYTES:
        raise LimitExceededError(f"{uncompressed_nbytes} uncompressed bytes; at most 2^62")
    if data_nbytes > MAX_DATA_NBYTES:
        raise LimitExceededError(f"{data_nbytes} bytes of blocks; at most 2^37")
    if num_blocks > MAX_NUM_BLOCKS:
        raise LimitExceededError(f"{num_blocks} blocks; at most 2^32")
    require(data_nbytes % UNIT == 0, f"data_nbytes {data_nbytes} is not a multiple of {UNIT}")
    require(num_blocks <= data_nbytes // UNIT, f"{num_blocks} blocks in {data_nbytes} bytes")

    if len(frame) < FIXED_NBYTES + 8 * ndim:
        raise TruncatedDataError(f"the frame ends inside its shape: {len(frame)} bytes")
    shape = struct.unpack_from(f"<{ndim}Q", frame, FIXED_NBYTES)
    if math.prod(shape) * bits > MAX_BITS:
        raise LimitExceededError(f"shape {shape} of {bits}-bit elements has more than 2^65 bits")
    header = Header(PROFILES[profile], dtype, block_log2, shape, data_nbytes, content)
    require(
        uncompressed_nbytes == header.uncompressed_nbytes,
        f"uncompressed_nbytes {uncompressed_nbytes}; the shape says {header.uncompressed_nbytes}",
    )
    require(num_blocks == header.num_blocks, f"num_blocks {num_blocks}; the shape says {header.num_blocks}")

    if len(frame) < header.header_nbytes:
        raise TruncatedDataError(f"the frame ends inside its index: {len(frame)} of {header.header_nbytes} bytes")
    head = frame[: header.header_nbytes]
    require(seal_header(head) == head, "the header checksum does not match")
    index_end = header.index_start + 8 * num_blocks
    require(not any(head[index_end:]), "padding behind the index is set")
    return header, _parse_index(head[header.index_start : index_end], header)


def _parse_dtype(name: bytes, bits: int) -> Dtype:
    text = name.rstrip(b"\0")
    require(len(text) > 0 and DTYPE_CHARACTERS.issuperset(text), f"dtype {name!r}")
    require(1 <= bits <= 1024, f"{bits} bits per element")
    try:
        return dtype_of(text.decode("ascii"), bits)
    except ValueError as error:
        raise CorruptDataError(str(error)) from None


def _parse_index(index: bytes, header: Header) -> list[tuple[int, int]]:
    entries = list(struct.iter_unpack("<II", index))
    if not entries:
        require(header.data_nbytes == 0, f"no blocks, but data_nbytes is {header.data_nbytes}")
        return entries
    ends = [offset for offset, _ in entries[1:]] + [header.data_nbytes // UNIT]
    require(entries[0][0] == 0, f"the first block's offset is {entries[0][0]}")
    for block, ((offset, _), end) in enumerate(zip(entries, ends, strict=True)):
        require(offset < end, f"block {block} starts at unit {offset} and ends at {end}")
        raw = ceil_to(header.block_words(block) * header.dtype.word_nbytes, UNIT)
        require((end - offset) * UNIT <= raw, f"block {block} has at most {raw} bytes, not {(end - offset) * UNIT}")
    return entries
