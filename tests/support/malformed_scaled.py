"""Malformed blocks of kind scaled: its parameters, scales and codes, where it may not stand, and its inner block."""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference.tensorwire_reference import Scaled, Stored
from reference.tensorwire_reference.encoder import pack_block
from reference.tensorwire_reference.tags import Tag
from tests.support.conformance_scaled import products
from tests.support.malforming import (
    VERSION,
    Edit,
    Malformed,
    insert_unit,
    instead,
    level,
    make,
    patch,
    replace,
    retag,
    unchanged,
)

_N = 256
_STORED = 1 << 15
_DESCRIPTOR = 12
_CODES = np.arange(_N) % 100
_SCALES = (0.5, 0.75)
_WORDS = products(1, _CODES, 128, _SCALES)
_INNER = bytes(_CODES.tolist())
_KIND: dict[str, Any] = {"kind": Scaled(Stored(), 1, 128, _SCALES)}
_FIVE = (b"\5" + b"\1").rjust(32, b"\0")  # a constant block of codes 5
_FIVES = products(1, np.full(_N, 5), 128, _SCALES)


def _scaled(
    inner: bytes = _INNER,
    scales: bytes = struct.pack("<2f", *_SCALES),
    *,
    width: int = 128,
    num_scales: int = 2,
    length: int | None = None,
    variant: int = 1,
) -> Edit:
    said = len(inner) // 32 | (_STORED if len(inner) == _N else 0) if length is None else length
    return instead(inner + scales, struct.pack("<IIH", width, num_scales, said), 7, 0, variant, 6)


def _params() -> Iterator[Malformed]:
    for profile in ("enec", "fast", "resident"):
        yield make(f"scaled-in-{profile}", unchanged, _WORDS, profile=profile, **_KIND)
    for rest in (1, 2):
        yield make(f"scaled-rest-{rest}", retag(rest << 3), _WORDS, **_KIND)
    yield make("scaled-rest-3", retag(3 << 3), _WORDS, error=VERSION, **_KIND)
    yield make("scaled-variant-2", retag(3 << 5), _WORDS, **_KIND)
    for dtype in ("F16", "I16"):
        yield make(f"scaled-of-{dtype}", _scaled(), _WORDS, dtype=dtype)
    yield make("scaled-width-0", _scaled(width=0), _WORDS)
    yield make("scaled-of-no-scales", _scaled(scales=b"", num_scales=0), _WORDS)
    three = struct.pack("<3f", 1, 1, 1)
    yield make("scaled-of-more-scales-than-words-have", _scaled(scales=three, num_scales=3), _WORDS)
    yield make("scaled-padding", replace({-_DESCRIPTOR - 1: 1}), _WORDS, **_KIND)
    yield make("scaled-padding-of-a-unit", insert_unit(_DESCRIPTOR), _WORDS, **_KIND)
    yield make("scaled-behind-the-streams", _scaled(num_scales=128, width=1), _WORDS)


def _scales() -> Iterator[Malformed]:
    bad = {"zero": 0, "negative": 0xBF000000, "infinite": 0x7F800000, "nan": 0x7FC00000}
    bad |= {"too-small": (16 << 23) - 1, "too-large": 240 << 23}
    for name, bits in bad.items():
        yield make(f"scaled-by-{name}", _scaled(scales=struct.pack("<fI", 0.5, bits)), _WORDS)


def _inner_blocks() -> Iterator[Malformed]:
    yield make("scaled-length-0", _scaled(b"", length=0), _WORDS)
    yield make("scaled-stored-of-length-0", _scaled(b"", length=_STORED), _WORDS)
    yield make("scaled-stored-and-short", _scaled(_INNER[:224], length=7 | _STORED), _WORDS)
    yield make("scaled-too-long", _scaled(_INNER + bytes(32), length=9), _WORDS)
    yield make("scaled-length-behind-the-streams", _scaled(_FIVE, length=8), _FIVES)
    yield make("scaled-padding-of-a-stored-block", _scaled(_INNER[:-1] + b"\1"), _WORDS[:-2])
    unknown = patch(_FIVE, {31: 0})
    yield make("scaled-of-an-unknown-kind", _scaled(unknown), _FIVES, error=VERSION)
    zero = struct.pack("<fI", 0.5, 0)
    yield make("pair-scaled-of-an-unknown-kind-by-zero", _scaled(unknown, zero), _FIVES, error=VERSION)
    yield make("pair-scaled-width-0-of-an-unknown-kind", _scaled(unknown, width=0), _FIVES)
    for code in (0x7F, 0xFF):
        inner = bytes([code]).rjust(_N, b"\0")
        yield make(f"scaled-code-{code:x}", _scaled(inner, variant=0), _WORDS)
    zeros = pack_block(level("0" * _N), struct.pack("<IHB", 0, 0, 0), Tag(6, 0, 0))
    yield make("scaled-of-zeros", _scaled(zeros), bytes(2 * _N))
    parts = pack_block(_FIVE * 2, struct.pack("<3H", 1, 1, 1), Tag(7, 0, 0, 5))
    yield make("scaled-of-parts", _scaled(parts, width=256), _FIVES * 2)
    nested = _scaled()(b"")
    yield make("scaled-of-scaled", _scaled(nested, length=len(nested) // 32), _WORDS)
    mask = level("1" * _N + "0" * 44)
    edit = instead(nested + mask, struct.pack("<IHB", _N, len(nested) // 32, 0), 6)
    yield make("zeros-of-scaled", edit, _WORDS + bytes(88))


MALFORMED_SCALED = (*_params(), *_scales(), *_inner_blocks())
