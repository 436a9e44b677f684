"""A few damaged frames with right checksums, which core and reference judge alike; `make sanitize` takes more."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import tensorwire
from tests.mutants import compare

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "core" / "core" / "test_mutations"


@pytest.mark.skipif(not PROGRAM.exists(), reason="make test builds the program")
def test_core_and_reference_judge_mutants_alike() -> None:
    shared, different = compare(PROGRAM, 600)
    assert different == []
    assert shared["decoded"] > 100
    assert shared["CorruptDataError"] > 200
    assert {"TruncatedDataError", "UnsupportedVersionError", "LimitExceededError"} < set(shared)


def test_a_header_that_ends_amid_its_shape_is_corrupt() -> None:
    """The frame is whole, so it is not truncated."""
    frame = bytearray(tensorwire.compress(bytes(range(200)), dtype="U8", shape=(2, 100)))
    struct.pack_into("<Q", frame, 56, 128)  # header_nbytes
    with pytest.raises(tensorwire.CorruptDataError, match="expected at least 152 bytes of header, got 128"):
        tensorwire.decompress(frame, framework="bytes")
