"""Malformed blocks of kind parts: their parameters, and parts that break a rule of the blocks that they are."""

import struct
from collections.abc import Iterator
from typing import Any

from reference.tensorwire_reference import Constant, Parts
from reference.tensorwire_reference.encoder import pack_block
from reference.tensorwire_reference.tags import Tag
from tests.support.malforming import (
    VERSION,
    Edit,
    Malformed,
    bf16,
    insert_unit,
    instead,
    level,
    make,
    patch,
    rans_zeros,
    replace,
    retag,
    unchanged,
)

RUN = 256
_STORED = 1 << 15  # of a length
_WORD = b"\x80\x3f"
_CONSTANT = (_WORD + b"\1").rjust(32, b"\0")  # a part
_ONES = _WORD * RUN
_TWO = _ONES * 2  # what two such parts hold
_DESCRIPTOR = 8  # bytes of that of two parts


def _parts(*parts: bytes, lengths: tuple[int, ...] = (), part_runs: int = 1, variant: int = 0) -> Edit:
    """A block of these parts. lengths: what the parameters say, by default what the parts have."""
    said = lengths or tuple(len(part) // 32 for part in parts)
    return instead(b"".join(parts), struct.pack(f"<{len(said) + 1}H", *said, part_runs), 7, 0, variant, 5)


def _params() -> Iterator[Malformed]:
    two: dict[str, Any] = {"kind": Parts((Constant(), Constant()))}
    for profile in ("enec", "fast", "resident"):
        yield make(f"parts-in-{profile}", unchanged, _TWO, profile=profile, **two)
    for rest in (1, 2):
        yield make(f"parts-rest-{rest}", retag(rest << 3), _TWO, **two)
    yield make("parts-rest-3", retag(3 << 3), _TWO, error=VERSION, **two)
    yield make("parts-variant", retag(1 << 5), _TWO, **two)
    yield make("parts-of-no-runs", replace({-4: 0}), _TWO, **two)
    for part_runs in (2, 0xFFFF):
        yield make(f"parts-one-of-{part_runs}-runs", _parts(_CONSTANT, part_runs=part_runs), _TWO)
    yield make("parts-one-of-all-words", _parts(_CONSTANT), _ONES)
    yield make("parts-seventeen", _parts(*[_CONSTANT] * 17), _ONES * 17, block_words=8192)
    yield make("parts-padding", replace({-_DESCRIPTOR - 1: 1}), _TWO, **two)
    yield make("parts-padding-of-a-unit", insert_unit(_DESCRIPTOR), _TWO, **two)
    yield make("parts-padding-of-64-in-units-of-64", insert_unit(_DESCRIPTOR, 64), _TWO, alignment=64, **two)
    yield make("parts-behind-the-streams", _parts(_CONSTANT, lengths=(1, 1)), _TWO)
    yield make("parts-length-0", _parts(_CONSTANT, b""), _ONES + bytes(2 * RUN))
    yield make("parts-stored-of-length-0", _parts(_CONSTANT, lengths=(1, _STORED)), _ONES + bytes(2 * RUN))
    words = bf16()
    edit = _parts(b"", b"", lengths=(0, 0, _STORED))
    yield make("parts-same-that-is-stored", edit, words, dtype="U8", base=words)
    # The descriptor of 16 parts is longer than this block.
    longer = _parts(*[_CONSTANT] * 16)
    yield make("parts-shorter-than-the-descriptor", lambda block: longer(block)[-32:], _ONES * 16, block_words=4096)


def _lengths() -> Iterator[Malformed]:
    """Parts that have other sizes than they may."""
    words = bf16(RUN)
    short = words[:480].ljust(512, b"\0")
    yield make("parts-stored-and-short", _parts(words[:480], _CONSTANT, lengths=(15 | _STORED, 1)), short + _ONES)
    longer = _parts(words + bytes(32), _CONSTANT, lengths=(17 | _STORED, 1))
    yield make("parts-stored-and-long", longer, words + _ONES)
    yield make("parts-constant-said-stored", _parts(_CONSTANT, _CONSTANT, lengths=(1 | _STORED, 1)), _TWO)
    ends_as_constant = bytes(509) + _WORD + b"\1"
    yield make("parts-stored-not-said", _parts(_CONSTANT, ends_as_constant), _ONES + ends_as_constant)
    # A plain part that does not get shorter, in as little room as it takes.
    plain = pack_block(words, bytes(2), Tag(5, 1, 0))
    yield make("parts-too-long", _parts(plain, _CONSTANT), words + _ONES)
    unknown = patch(plain, {-1: 0})
    yield make("parts-too-long-of-an-unknown-kind", _parts(unknown, _CONSTANT), words + _ONES)
    # As long as a block of a frame aligned to 64 bytes; a part has less than 32 bytes of padding.
    edit = _parts(_CONSTANT.rjust(64, b"\0"), _CONSTANT)
    yield make("parts-aligned-to-64", edit, _TWO, alignment=64)


def _within() -> Iterator[Malformed]:
    """Parts that break a rule of all blocks, the first ones and the last ones."""
    unknown = {"kind": {31: 0}, "extended-kind-0": {31: 7, 30: 0}, "extended-kind-7": {31: 7, 30: 7}, "rest": {31: 25}}
    for name, changes in unknown.items():
        part = patch(_CONSTANT, changes)
        yield make(f"parts-first-of-unknown-{name}", _parts(part, _CONSTANT), _TWO, error=VERSION)
        yield make(f"parts-last-of-unknown-{name}", _parts(_CONSTANT, part), _TWO, error=VERSION)
    part, padded = patch(_CONSTANT, {31: 0}), patch(_CONSTANT, {0: 1})
    yield make("pair-parts-unknown-and-padding", _parts(part, padded), _TWO, error=VERSION)
    yield make("pair-parts-padding-and-unknown", _parts(padded, part), _TWO)
    behind = replace({-_DESCRIPTOR - 1: 1})
    yield make("pair-parts-unknown-and-bytes-behind", lambda b: behind(_parts(part, _CONSTANT)(b)), _TWO, error=VERSION)
    unit = insert_unit(_DESCRIPTOR)
    yield make("pair-parts-unknown-and-a-unit-behind", lambda b: unit(_parts(part, _CONSTANT)(b)), _TWO, error=VERSION)
    yield make("pair-parts-unknown-and-behind-the-streams", _parts(part, lengths=(1, 1)), _TWO)
    yield make("pair-parts-unknown-and-length-0", _parts(part, b""), _TWO)
    yield make("pair-parts-unknown-of-a-variant", _parts(part, _CONSTANT, variant=1), _TWO)
    yield make("parts-last-padding", _parts(_CONSTANT, padded), _TWO)
    stored = (_WORD + b"\1").ljust(32, b"\0")
    yield make("parts-stored-padding", _parts(_CONSTANT, stored, lengths=(1, 1 | _STORED)), _ONES + _WORD)


def _nested() -> Iterator[Malformed]:
    inner = _parts(_CONSTANT, _CONSTANT)(b"")
    yield make("parts-nested", _parts(inner, _CONSTANT, part_runs=2), _TWO * 2)
    with_rest_3 = patch(inner, {-1: 7 | 3 << 3})
    yield make("pair-parts-nested-with-rest-3", _parts(with_rest_3, _CONSTANT, part_runs=2), _TWO * 2, error=VERSION)
    zeros = bytes(2 * RUN)
    mask = level("1" * 2 * RUN + "0" * RUN)
    units = len(inner) // 32
    edit = instead(inner + mask, struct.pack("<IHB", 2 * RUN, units, 0), 6)
    yield make("zeros-of-parts", edit, _TWO + zeros)
    of_unknown = patch(bytes(32), {31: 0})
    first_40 = level("1" * 40 + "0" * (RUN - 40))
    for name, content, error in (("unknown", of_unknown, VERSION), ("zeros", None, "CorruptDataError")):
        params = struct.pack("<IHB", 40, 1, 0)
        inner_block = content or pack_block(level("0" * 40), struct.pack("<IHB", 0, 0, 0), Tag(6, 0, 0))
        part = pack_block(inner_block + first_40, params, Tag(6, 0, 0))
        yield make(f"parts-of-zeros-of-{name}", _parts(part, _CONSTANT), zeros + _ONES, error=error)
    for kind, streams, params in ((3, level("1"), b""), (4, rans_zeros(RUN), bytes(4))):
        part = pack_block(streams, params, Tag(7, 0, 0, kind))
        yield make(f"parts-of-kind-{kind}-in-a-plain-frame", _parts(part, _CONSTANT), zeros + _ONES)


MALFORMED_PARTS = (*_params(), *_lengths(), *_within(), *_nested())
