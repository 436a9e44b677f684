"""Malformed blocks of layouts that no dtype of the page's table has: what depends on E, R and the split."""

import struct
from collections.abc import Iterator

from reference.tensorwire_reference import Layout
from reference.tensorwire_reference.planes import field_nbytes
from tests.support.malforming import Malformed, instead, level, make, mask, rans_zeros

N = 600
_ONE_TIER = 7  # the variant of kind cascade with one tier of one bit
_EXPONENTS = Layout(1, 8, 0, "unsigned", False)
_SIGN_AND_EXPONENT = Layout(1, 7, 1, "float", True)
_ONE_BIT = Layout(2, 1, 15, "float", True)
_SIGNED = Layout(2, 8, 8, "signed", False)


def _plane(w: int) -> bytes:
    return bytes(field_nbytes(N, w))


def _exponents() -> Iterator[Malformed]:
    """All exponents are 0, or the lowest bit of what stands in the block."""
    zeros = bytes(N)
    entropy = instead(rans_zeros(N), bytes(4), 4, 0, 1)
    yield make("entropy-k-1-of-R-0", entropy, zeros, dtype="X", layout=_EXPONENTS)
    yield make("entropy-k-1-of-R-1", entropy, zeros, dtype="X", layout=_SIGN_AND_EXPONENT)
    tier = struct.pack("<B6H", 0, 0, 0, 0, 0, 0, 0)
    for lead, trail in ((1, 0), (0, 1), (1, 255)):
        streams = (b"\0\0\0\0" if trail == 255 else b"") + _plane(1)
        edit = instead(streams, bytes([lead, trail]) + tier, 3, 1, _ONE_TIER)
        yield make(f"trimmed-{lead}-{trail}-of-R-0", edit, zeros, dtype="X", layout=_EXPONENTS)
    words, options = bytes(2 * N), {"dtype": "X", "layout": _ONE_BIT}
    trimmed = bytes([15, 0])  # no rest has a bit
    for lo in (2, 255):
        params = trimmed + struct.pack("<B6H", lo, 0, 0, 0, 0, 0, 0)
        edit = instead(_plane(1), params, 3, 1, _ONE_TIER)
        yield make(f"cascade-lo-{lo}-of-E-1", edit, words, **options)
    # The escapes are a plane of 8 bits, of which an exponent has one.
    params = trimmed + struct.pack("<B6H", 1, 0, N, 0, 0, 0, 0)
    edit = instead(mask(N, N) + b"\2" * N, params, 3, 1, _ONE_TIER)
    yield make("cascade-exponent-2-of-E-1", edit, words, **options)
    params = trimmed + bytes([0, 1 << 4 | 2, 0, 0])
    edit = instead(_plane(1) + bytes(field_nbytes(N // 4, 1)), params, 2, 1, 2)
    yield make("enec-nb-2-of-E-1", edit, words, **options)
    edit = instead(level("0" * N), trimmed + bytes([2, 0, 0, 0, 0]), 7, 1, 0, 2)
    yield make("modal-mode-2-of-E-1", edit, words, **options)
    edit = instead(rans_zeros(N), trimmed + b"\1\0\0\0", 4, 1)
    yield make("entropy-lo-1-of-E-1", edit, words, **options)


def _splits() -> Iterator[Malformed]:
    words, options = bytes(2 * N), {"dtype": "X", "layout": _SIGNED}
    for signs in (1, 2):
        edit = instead(level("0" * N) + level("0" * N) * (signs == 2), struct.pack("<IHB", 0, 0, signs), 6)
        yield make(f"zeros-signs-{signs}-of-a-signed-layout", edit, words, **options)
    for kind, streams, params in ((3, level("11"), b"\5"), (4, rans_zeros(N), b"\0\0\0\0\5")):
        edit = instead(streams, params, 7, 0, 1, kind)
        yield make(f"classes-of-a-signed-layout-in-{kind}", edit, words, base=words, **options)
    unsplit = Layout(2, 0, 0, "none", True)
    edit = instead(level("11"), b"\5", 7, 0, 1, 3)
    yield make("classes-of-an-unsplit-layout", edit, words, base=words, dtype="X", layout=unsplit)
    edit = instead(level("11"), b"\2", 7, 0, 1, 3)
    yield make("threshold-2-of-E-1", edit, words, base=words, dtype="X", layout=_ONE_BIT)


MALFORMED_LAYOUTS = (*_exponents(), *_splits())
