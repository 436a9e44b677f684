"""Section "Hashes": the padded XXH3-128 and the content hash."""

import xxhash

LEAF_NBYTES = 131072


def h128(message: bytes) -> bytes:
    """`H(message)`: 16 bytes, the low 64-bit half first."""
    padding = 256 if not message else -len(message) % 256
    return xxhash.xxh3_128_intdigest(message + bytes(padding)).to_bytes(16, "little")


def content_hash(data: bytes) -> bytes:
    """The 16-byte hash tree over the uncompressed bytes of a frame."""
    leaves = (data[i : i + LEAF_NBYTES] for i in range(0, len(data), LEAF_NBYTES))
    return h128(len(data).to_bytes(8, "little") + b"".join(h128(leaf) for leaf in leaves))
