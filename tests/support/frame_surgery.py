"""Change fields of a frame and make its checksums right again, with xxhash as docs/format.md defines them.

What comes out is refused for the field that was changed, not for a checksum.
"""

from __future__ import annotations

import struct

import xxhash

HEADER_CHECKSUM = 120
# field: (offset in the header, struct format)
FIELDS = {
    "magic": (0, "8s"),
    "version": (8, "B"),
    "profile": (9, "B"),
    "order": (10, "B"),
    "ndim": (11, "B"),
    "required_features": (12, "<I"),
    "dtype": (16, "16s"),
    "bits": (32, "<H"),
    "reserved_34": (34, "2s"),
    "block_words": (36, "<I"),
    "uncompressed_nbytes": (40, "<Q"),
    "data_nbytes": (48, "<Q"),
    "num_blocks": (56, "<Q"),
    "content_hash": (64, "16s"),
    "base_hash": (80, "16s"),
    "reserved_96": (96, "24s"),
}


def padded_hash(message: bytes) -> bytes:
    """H of docs/format.md: 16 bytes, the low 64 bits first."""
    padded = message + bytes(max(256, -(-len(message) // 256) * 256) - len(message))
    return xxhash.xxh3_128_intdigest(padded).to_bytes(16, "little")


def content_hash(content: bytes) -> str:
    leaves = [padded_hash(content[start : start + 131072]) for start in range(0, len(content), 131072)]
    return padded_hash(struct.pack("<Q", len(content)) + b"".join(leaves)).hex()


class Surgery:
    """A frame laid open."""

    def __init__(self, frame: bytes | memoryview) -> None:
        self.bytes = bytearray(frame)
        self.ndim = self.bytes[11]
        self.num_blocks = self.get("num_blocks")
        self.index = 128 + 8 * self.ndim
        # A relative frame without data has no index.
        index_nbytes = 8 * self.num_blocks if self.get("data_nbytes") or not self.get("required_features") else 0
        self.header_nbytes = -(-(self.index + index_nbytes) // 32) * 32

    def get(self, field: str) -> int:
        offset, form = FIELDS[field]
        value: int = struct.unpack_from(form, self.bytes, offset)[0]
        return value

    def set(self, field: str, value: int | bytes) -> None:
        offset, form = FIELDS[field]
        struct.pack_into(form, self.bytes, offset, value)

    def set_shape(self, *shape: int) -> None:
        struct.pack_into(f"<{len(shape)}Q", self.bytes, 128, *shape)

    def entry(self, block: int) -> tuple[int, int]:
        """(offset in units of 32 bytes, checksum) of a block."""
        offset, checksum = struct.unpack_from("<II", self.bytes, self.index + 8 * block)
        return offset, checksum

    def set_entry(self, block: int, offset: int, checksum: int) -> None:
        struct.pack_into("<II", self.bytes, self.index + 8 * block, offset, checksum)

    def block_span(self, block: int) -> tuple[int, int]:
        """First and last byte (exclusive) of a block in the frame."""
        start = 32 * self.entry(block)[0]
        stop = self.get("data_nbytes") if block + 1 == self.num_blocks else 32 * self.entry(block + 1)[0]
        return self.header_nbytes + start, self.header_nbytes + stop

    def rehash_block(self, block: int) -> None:
        start, stop = self.block_span(block)
        content = bytes(self.bytes[start:stop])
        checksum = int.from_bytes(padded_hash(content)[:4], "little") if content else 0
        self.set_entry(block, self.entry(block)[0], checksum)

    def close(self, header_nbytes: int | None = None) -> bytes:
        """The frame with a right header checksum."""
        header = self.bytes[: header_nbytes or self.header_nbytes]
        header[HEADER_CHECKSUM : HEADER_CHECKSUM + 8] = bytes(8)
        self.bytes[HEADER_CHECKSUM : HEADER_CHECKSUM + 8] = padded_hash(bytes(header))[:8]
        return bytes(self.bytes)
