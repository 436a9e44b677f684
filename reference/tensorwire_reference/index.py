"""Sections "Index" and "Extensions", which are step 7 of the order of checks."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .errors import TruncatedDataError, require
from .hashes import h128
from .header import CHECKSUMS, HEADER_CHECKSUM, Header, ceil_to, parse_fixed

STORED = 1 << 31
ENCODER, ENCODER_NBYTES = 1, 4  # the extension whose content this page describes
_RECORD = struct.Struct("<II")


@dataclass(frozen=True)
class Entry:
    """Where a block lies, in bytes from the first block, whether it is stored, and its checksum."""

    start: int
    end: int
    stored: bool
    checksum: int


def parse_header(frame: bytes) -> tuple[Header, list[Entry]]:
    """Steps 1 to 7 of the page's order of checks. Returns the header and the index."""
    header = parse_fixed(frame)
    if len(frame) < header.header_nbytes:
        raise TruncatedDataError(f"the frame ends inside its header: {len(frame)} of {header.header_nbytes} bytes")
    behind_shape = frame[header.index_start : header.header_nbytes]
    checksum = frame[CHECKSUMS.start : HEADER_CHECKSUM.start]
    require(h128(behind_shape)[:8] == checksum, "the index checksum does not match")
    entries = _parse_index(frame[header.index_start : header.index_end], header)
    extensions = _parse_extensions(frame[header.index_end : header.header_nbytes])
    return replace(header, extensions=extensions), entries


def _parse_index(index: bytes, header: Header) -> list[Entry]:
    """Without an index the frame has no blocks, or all of them are same."""
    require(header.num_blocks > 0 or header.data_nbytes == 0, f"no blocks, but data_nbytes is {header.data_nbytes}")
    if not index:
        require(header.base_hash in (None, header.content_hash), "nothing changed, but base_hash is not content_hash")
        return []
    unit = header.block_alignment
    pairs = [(place % STORED * unit, place >= STORED, checksum) for place, checksum in _RECORD.iter_unpack(index)]
    require(pairs[0][0] == 0, f"the first block starts at byte {pairs[0][0]}")
    ends = [start for start, _, _ in pairs[1:]] + [header.data_nbytes]
    entries = [Entry(start, end, stored, checksum) for (start, stored, checksum), end in zip(pairs, ends, strict=True)]
    for block, entry in enumerate(entries):
        _check_entry(block, entry, header)
    return entries


def _check_entry(block: int, entry: Entry, header: Header) -> None:
    size, raw = entry.end - entry.start, header.raw_nbytes(block)
    if size == 0 and header.base_hash is not None:
        require(not entry.stored and entry.checksum == 0, f"block {block} is the same, but stored or with a checksum")
        return
    require(size > 0, f"block {block} has {size} bytes")
    require(size <= raw, f"block {block} has at most {raw} bytes, not {size}")
    require(size == raw or not entry.stored, f"block {block} is stored and has {raw} bytes, not {size}")


def pack_index(blocks: Sequence[tuple[bytes, bool]], unit: int) -> bytes:
    """The index of blocks, each with whether it is stored."""
    records, start = [], 0
    for block, stored in blocks:
        checksum = int.from_bytes(h128(block)[:4], "little") if block else 0
        records.append(_RECORD.pack(start // unit | (STORED if stored else 0), checksum))
        start += len(block)
    return b"".join(records)


def _parse_extensions(area: bytes) -> dict[int, bytes]:
    """All records by their tags, in order."""
    found: dict[int, bytes] = {}
    position, last = 0, 0
    while position < len(area):
        tag, length = _RECORD.unpack_from(area, position)
        if tag == 0:
            require(not any(area[position:]), "bytes behind the last extension are set")
            break
        require(tag > last, f"extension {tag} behind extension {last}")
        start = position + _RECORD.size
        position, last = start + ceil_to(length, 8), tag
        require(position <= len(area), f"extension {tag} ends behind the header")
        require(not any(area[start + length : position]), f"the padding of extension {tag} is set")
        require(tag != ENCODER or length == ENCODER_NBYTES, f"the encoder's number has {length} bytes")
        found[tag] = area[start : start + length]
    return found


def pack_extensions(extensions: dict[int, bytes]) -> bytes:
    """The records in the order of their tags."""
    return b"".join(
        _RECORD.pack(tag, len(content)) + content.ljust(ceil_to(len(content), 8), b"\0")
        for tag, content in sorted(extensions.items())
    )
