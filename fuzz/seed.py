"""Write the corpora of the fuzz targets from the golden frames: ``PYTHONPATH=. python fuzz/seed.py``.

Adds to fuzz/corpus and removes nothing: inputs that once found a bug stay. Frames and contents beyond MAX_NBYTES are
left out, since short inputs mutate best. What adds no coverage can go: ``TARGET -merge=1 SMALLER fuzz/corpus/TARGET``.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from reference.tensorwire_reference import Layout, decode
from reference.tensorwire_reference.header import PROFILES, Header
from reference.tensorwire_reference.index import parse_header
from reference.tensorwire_reference.layouts import SPLITS
from tests.support import golden

ROOT = Path(__file__).resolve().parent.parent
MAX_NBYTES = 640
# As in round_trip.cpp.
DTYPES = ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "F64", "I64", "I32", "U16", "BOOL", "F4", "C128")
REPAIR, BASE = 1, 2  # as in decode.cpp
RELATIVE, ORDERED, GIVEN_LAYOUT = 128, 128, 128  # as in block.cpp and round_trip.cpp
MAX_BLOCK_WORDS = 1 << 15


def add(target: str, data: bytes) -> None:
    folder = ROOT / "fuzz" / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def prefixed(base: bytes | None) -> bytes:
    """A base behind its size; nothing where there is none, or too much of it."""
    base = b"" if base is None or len(base) > MAX_NBYTES else base
    return struct.pack("<H", len(base)) + base


def layout_bits(layout: Layout) -> int:
    """As layout.h reads them."""
    exponent = max(layout.exponent_bits, 1) - 1
    return layout.word_nbytes.bit_length() - 1 | exponent << 2 | SPLITS.index(layout.split) << 5


def alignment(header: Header) -> int:
    return header.block_alignment.bit_length() - 6


def add_blocks(frame: bytes, base: bytes | None) -> None:
    header, index = parse_header(frame)
    layout = header.layout
    form = PROFILES.index(header.profile) | alignment(header) << 3 | (0 if base is None else RELATIVE)
    for block, entry in enumerate(index[:3]):
        words = header.words_of(block)
        n = words.stop - words.start
        if n <= MAX_BLOCK_WORDS and entry.end - entry.start <= MAX_NBYTES:
            of_base = base and base[words.start * layout.word_nbytes : words.stop * layout.word_nbytes]
            head = bytes([layout_bits(layout) | ORDERED * layout.ordered, form | 4 * entry.stored])
            coded = frame[header.header_nbytes + entry.start : header.header_nbytes + entry.end]
            add("block", head + struct.pack("<H", n - 1) + prefixed(of_base) + coded)


def add_content(frame: bytes, base: bytes | None) -> None:
    decoded = decode(frame, base)
    header = decoded.header
    if len(decoded.data) > MAX_NBYTES:
        return
    given = GIVEN_LAYOUT | layout_bits(header.layout)
    dtype = DTYPES.index(header.dtype) if header.dtype in DTYPES else given
    form = PROFILES.index(header.profile) | alignment(header) << 2 | (0 if base is None else RELATIVE)
    add("round_trip", bytes([dtype, form, header.block_words // 256 % 256, 0]) + decoded.data)


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
        add_content(frame, base)


if __name__ == "__main__":
    main()
