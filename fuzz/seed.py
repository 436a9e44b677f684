"""Write the corpora of the fuzz targets from the golden frames: ``PYTHONPATH=. python fuzz/seed.py``.

Adds to fuzz/corpus and removes nothing: inputs that once found a bug stay. Frames and contents beyond MAX_NBYTES are
left out, since short inputs mutate best. What adds no coverage can go: ``TARGET -merge=1 SMALLER fuzz/corpus/TARGET``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from reference.tensorwire_reference import decode
from tests.support import golden

ROOT = Path(__file__).resolve().parent.parent
MAX_NBYTES = 2048
# As in round_trip.cpp.
DTYPES = ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "F64", "I64", "I32", "U16", "BOOL", "F4", "C128")
PROFILES = ("enec", "fast", "compact", "resident")


def add(target: str, data: bytes) -> None:
    folder = ROOT / "fuzz" / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def main() -> None:
    valid, invalid = golden.manifest("frames"), golden.manifest("invalid")
    for entry in (*valid, *invalid):
        frame = golden.frame_of(entry)
        if len(frame) <= MAX_NBYTES:
            add("decode", b"\1" + frame)  # flags: repair the checksums
    for entry in valid:
        decoded = decode(golden.frame_of(entry), golden.base_of(entry))
        if decoded.dtype in DTYPES and len(decoded.data) <= MAX_NBYTES:
            dtype, profile = DTYPES.index(decoded.dtype), PROFILES.index(decoded.profile)
            add("round_trip", bytes([dtype, profile, decoded.block_words // 256 % 256, 0]) + decoded.data)


if __name__ == "__main__":
    main()
