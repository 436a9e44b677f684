"""Change fields of a frame and make its checksums right again, with xxhash as docs/format.md defines them.

What comes out is refused for the field that was changed, not for a checksum.
"""

from __future__ import annotations

import struct

import xxhash

CHECKSUMS = 112  # that of index and extensions, then the header's
STORED = 1 << 31  # of a place in the index
# field: (offset in the header, struct format)
FIELDS = {
    "magic": (0, "8s"),
    "version": (8, "B"),
    "profile": (9, "B"),
    "order": (10, "B"),
    "ndim": (11, "B"),
    "required_features": (12, "<I"),
    "optional_features": (16, "<I"),
    "hash_algorithm": (20, "B"),
    "block_alignment": (21, "B"),
    "frame_alignment": (22, "B"),
    "reserved_23": (23, "B"),
    "word_nbytes": (24, "B"),
    "exponent_bits": (25, "B"),
    "rest_bits": (26, "B"),
    "split": (27, "B"),
    "ordered": (28, "B"),
    "reserved_29": (29, "B"),
    "bits": (30, "<H"),
    "dtype": (32, "16s"),
    "uncompressed_nbytes": (48, "<Q"),
    "header_nbytes": (56, "<Q"),
    "data_nbytes": (64, "<Q"),
    "block_words": (72, "<I"),
    "padding_nbytes": (76, "<I"),
    "content_hash": (80, "16s"),
    "base_hash": (96, "16s"),
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
        num_words = self.get("uncompressed_nbytes") // self.get("word_nbytes")
        self.num_blocks = -(-num_words // self.get("block_words"))
        self.index = 128 + 8 * self.ndim
        self.header_nbytes = self.get("header_nbytes")
        self.unit = 1 << self.get("block_alignment")

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
        """(place, checksum) of a block: units from the first block, with bit 31 for stored ones."""
        place, checksum = struct.unpack_from("<II", self.bytes, self.index + 8 * block)
        return place, checksum

    def set_entry(self, block: int, place: int, checksum: int) -> None:
        struct.pack_into("<II", self.bytes, self.index + 8 * block, place, checksum)

    def block_span(self, block: int) -> tuple[int, int]:
        """First and last byte (exclusive) of a block in the frame."""
        last = block + 1 == self.num_blocks
        stop = self.get("data_nbytes") if last else self.entry(block + 1)[0] % STORED * self.unit
        return self.header_nbytes + self.entry(block)[0] % STORED * self.unit, self.header_nbytes + stop

    def rehash_block(self, block: int) -> None:
        start, stop = self.block_span(block)
        content = bytes(self.bytes[start:stop])
        checksum = int.from_bytes(padded_hash(content)[:4], "little") if content else 0
        self.set_entry(block, self.entry(block)[0], checksum)

    def close(self) -> bytes:
        """The frame with both checksums of its header right."""
        index = padded_hash(bytes(self.bytes[self.index : self.header_nbytes]))[:8]
        self.bytes[CHECKSUMS : CHECKSUMS + 16] = index + bytes(8)
        self.bytes[CHECKSUMS + 8 : CHECKSUMS + 16] = padded_hash(bytes(self.bytes[: self.index]))[:8]
        return bytes(self.bytes)
