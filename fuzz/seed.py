"""Write the corpora of the fuzz targets from the golden frames: ``PYTHONPATH=. python fuzz/seed.py``.

Adds to fuzz/corpus and removes nothing: inputs that once found a bug stay. Frames and contents beyond MAX_NBYTES are
left out, since short inputs mutate best. What adds no coverage can go: ``TARGET -merge=1 SMALLER fuzz/corpus/TARGET``.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from reference.tensorwire_reference import decode
from tests.support import golden
from tests.support.frame_surgery import Surgery

ROOT = Path(__file__).resolve().parent.parent
MAX_NBYTES = 640
# As in round_trip.cpp.
DTYPES = ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "F64", "I64", "I32", "U16", "BOOL", "F4", "C128")
PROFILES = ("enec", "fast", "compact", "resident")
REPAIR, BASE = 1, 2  # as in decode.cpp
# As in block.cpp.
BLOCK_DTYPES = ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "F64", "I8", "U8", "I64", "I32", "U16", "BOOL")
MAX_BLOCK_WORDS = 1 << 15


def add(target: str, data: bytes) -> None:
    folder = ROOT / "fuzz" / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def prefixed(base: bytes | None) -> bytes:
    """A base behind its size; nothing where there is none, or too much of it."""
    base = b"" if base is None or len(base) > MAX_NBYTES else base
    return struct.pack("<H", len(base)) + base


def add_blocks(frame: bytes, base: bytes | None) -> None:
    surgery = Surgery(frame)
    dtype = frame[16:32].rstrip(b"\0").decode()
    if dtype not in BLOCK_DTYPES or surgery.num_blocks > 3 or surgery.get("data_nbytes") == 0:
        return
    relative = 128 if surgery.get("required_features") else 0
    block_words, word_nbytes = surgery.get("block_words"), surgery.get("bits") // 8
    num_words = surgery.get("uncompressed_nbytes") // word_nbytes
    for block in range(surgery.num_blocks):
        start, stop = surgery.block_span(block)
        first = block * block_words
        n = min(block_words, num_words - first)
        if 1 <= n <= MAX_BLOCK_WORDS and stop - start <= MAX_NBYTES:
            words = prefixed(base and base[first * word_nbytes : (first + n) * word_nbytes])
            head = bytes([BLOCK_DTYPES.index(dtype), relative + surgery.get("profile")])
            add("block", head + struct.pack("<H", n - 1) + words + frame[start:stop])


def main() -> None:
    valid, invalid = golden.manifest("frames"), golden.manifest("invalid")
    for entry in (*valid, *invalid):
        frame, base = golden.frame_of(entry), golden.base_of(entry)
        if len(frame) <= MAX_NBYTES:
            flags = REPAIR if base is None else REPAIR | BASE
            add("decode", bytes([flags]) + (b"" if base is None else prefixed(base)) + frame)
    for entry in valid:
        frame, base = golden.frame_of(entry), golden.base_of(entry)
        add_blocks(frame, base)
        decoded = decode(frame, base)
        if decoded.dtype in DTYPES and len(decoded.data) <= MAX_NBYTES:
            dtype, profile = DTYPES.index(decoded.dtype), PROFILES.index(decoded.profile)
            relative = 0 if base is None else 128
            head = bytes([dtype, relative + profile, decoded.block_words // 256 % 256, 0])
            add("round_trip", head + decoded.data)


if __name__ == "__main__":
    main()
