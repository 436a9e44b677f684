"""Kinds of relative frames, the core against the reference: it decodes what the reference encodes, refuses what breaks
a rule, and encodes what the reference decodes."""

from __future__ import annotations

import numpy as np
import pytest

from reference.tensorwire_reference import decode
from tensorwire import _core
from tensorwire.codec import content_hash
from tests.support.cases import Case, words_nbytes
from tests.support.conformance_relative import DTYPES, RELATIVE_CASES, base_of, step, steps_of
from tests.support.malformed import MALFORMED, Malformed


def decompress(frame: bytes, base: bytes, *, in_place: bool = False) -> bytes:
    info = _core.decode_header(frame)
    out = bytearray(base) if in_place else bytearray(info.uncompressed_nbytes)
    origin = out if in_place else base
    _core.decode(info, frame, frame[info.header_nbytes :], 0, 0, info.uncompressed_nbytes, out, 1, True, origin)
    return bytes(out)


@pytest.mark.parametrize("case", RELATIVE_CASES, ids=lambda case: case.name)
def test_core_decodes_reference_frames(case: Case) -> None:
    assert case.base is not None
    frame = case.build()
    assert decompress(frame, case.base) == case.data
    assert decompress(frame, case.base, in_place=True) == case.data


def of_relative_kind(malformed: Malformed) -> bool:
    return malformed.name.startswith(("block-sparse", "block-dense")) and malformed.base is not None


@pytest.mark.parametrize("malformed", list(filter(of_relative_kind, MALFORMED)), ids=lambda malformed: malformed.name)
def test_core_refuses_malformed_frames(malformed: Malformed) -> None:
    assert malformed.base is not None
    with pytest.raises(Exception) as raised:  # noqa: PT011 -- compared by name
        decompress(malformed.build(), malformed.base)
    assert type(raised.value).__name__ == malformed.error


def compress(data: bytes, base: bytes, dtype: str, profile: str) -> bytes:
    numel = len(data) // words_nbytes(dtype)
    of_base = bytes.fromhex(content_hash(base))
    frame = _core.frame_init(dtype, 0, (numel,), _core.PROFILES.index(profile), 0, of_base)
    out = bytearray(_core.frame_bound(frame))
    _core.compress(frame, data, out, 1, base)
    return bytes(out[: frame.frame_nbytes])


@pytest.mark.parametrize("profile", ["enec", "fast", "compact"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_decodes_core_frames(dtype: str, profile: str) -> None:
    found = set()
    for n, share, largest in ((3000, 0.01, 3), (3000, 0.3, 100), (3000, 1.0, 3), (100, 0.05, 10000), (9000, 0.1, 1)):
        base = base_of(dtype, n)
        data = step(base, dtype, steps_of(n, f"core {dtype} {share}", share, largest=largest))
        ours = compress(data, base, dtype, profile)
        frame = decode(ours, base)
        assert frame.data == data
        found |= {coding.split("(")[0] for coding in frame.codings}
    assert found & {"sparse", "dense"}


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_word_near_every_exponent(dtype: str) -> None:
    """Each of the 2^16 words as base: steps of one, none and many, and zeros, infinities and NaNs of either sign."""
    words = np.arange(1 << 16, dtype=np.uint16)
    for others in (words + np.uint16(1), words ^ np.uint16(0x8000), words[::-1], np.roll(words, 257), words):
        base, data = words.tobytes(), np.ascontiguousarray(others).tobytes()
        for profile in ("fast", "compact"):
            frame = compress(data, base, dtype, profile)
            assert decompress(frame, base) == data
            assert decompress(frame, base, in_place=True) == data
