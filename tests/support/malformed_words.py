"""Malformed frames of the kinds zeros and modal, of masks, and of the kinds of relative frames."""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference.tensorwire_reference import Dense, Modal, Plain, Sparse, Stored, Trimmed, Zeros
from reference.tensorwire_reference.encoder import pack_block
from reference.tensorwire_reference.planes import field_nbytes, pack_field
from reference.tensorwire_reference.rans import write_symbols
from reference.tensorwire_reference.tags import Tag
from tests.support.malforming import (
    VERSION,
    Edit,
    Malformed,
    bf16,
    bit_string,
    instead,
    level,
    make,
    patch,
    rans_zeros,
    replace,
    unchanged,
)

N = 300
_KEPT = bf16(40)
_STORED = _KEPT.ljust(96, b"\0")  # an inner block of 40 words
_DATA = _KEPT + bytes(2 * (N - 40))
_INNER_STORED = 4  # of the flags
_FIRST_40 = "1" * 40 + "0" * (N - 40)
# golomb(0) of 2, as the page says it: q = 1, and one bit.
_TWO = "011"


def _zeros_block(
    streams: bytes, num_kept: int = 40, units: int = 3, signs: int = 0, variant: int = 0, *, stored: bool = True
) -> Edit:
    """stored: what the flags say of the inner block."""
    return instead(streams, struct.pack("<IHB", num_kept, units, signs | _INNER_STORED * stored), 6, 0, variant)


def _zeros() -> Iterator[Malformed]:
    zeros: dict[str, Any] = {"kind": Zeros(Stored(), 0)}
    mask = level(_FIRST_40)
    yield make("zeros-rest", replace({-1: 6 | 1 << 3}), _DATA, **zeros)
    yield make("zeros-num-kept-0", replace({-8: 0}), _DATA, **zeros)
    yield make("zeros-num-kept-41", replace({-8: 41}), _DATA, **zeros)
    yield make("zeros-num-kept-huge", replace({-5: 0xFF}), _DATA, **zeros)
    yield make("zeros-inner-units-0", replace({-4: 0}), _DATA, **zeros)
    yield make(
        "zeros-inner-units-of-nothing", _zeros_block(bytes(32) + level("0" * N), 0, 1, stored=False), bytes(2 * N)
    )
    yield make("zeros-stored-of-nothing", _zeros_block(level("0" * N), 0, 0), bytes(2 * N))
    yield make("zeros-inner-too-long", _zeros_block(_STORED + bytes(32) + mask, units=4), _DATA)
    too_long = _KEPT.ljust(128, b"\0")
    for name, tag in (("constant", 1), ("an-unknown-kind", 0)):
        edit = _zeros_block(patch(too_long, {-1: tag}) + mask, units=4, stored=False)
        yield make(f"zeros-inner-too-long-of-{name}", edit, _DATA)
    yield make("zeros-inner-stored-and-short", _zeros_block(_STORED[:64] + mask, units=2), _DATA)
    equal = b"\x80\x3f" * 40 + bytes(2 * (N - 40))
    constant = b"\x80\x3f\1"
    inner = constant.rjust(32, b"\0")
    yield make("zeros-inner-constant-said-stored", _zeros_block(inner + mask, units=1), equal)
    # As long as a block of a frame aligned to 64 bytes; an inner one has less than 32 bytes of padding.
    edit = _zeros_block(constant.rjust(64, b"\0") + mask, units=2, stored=False)
    yield make("zeros-inner-aligned-to-64", edit, equal)
    for flag in (8, 16, 32, 64, 128):
        edit = _zeros_block(_STORED + mask, signs=flag)
        yield make(f"zeros-flag-{flag}", edit, _DATA)
    yield make("zeros-inner-behind-the-streams", _zeros_block(_STORED, num_kept=N, units=19), _DATA)
    yield make("zeros-signs-3", _zeros_block(_STORED + mask, signs=3), _DATA)
    for signs in (1, 2):
        edit = _zeros_block(_STORED + mask + bytes(36 * (signs == 2)), signs=signs)
        yield make(f"zeros-signs-{signs}-of-integers", edit, _DATA, dtype="I16")
    yield make("zeros-signs-cut", _zeros_block(_STORED + mask, signs=2), _DATA)
    signs_of_260 = bytes(32) + b"\x10\0\0\0"
    yield make("zeros-signs-padding", _zeros_block(_STORED + mask + signs_of_260, signs=2), _DATA)
    params = struct.pack("<IHB", 40, 3, _INNER_STORED)
    inner = pack_block(_STORED + level("1" * 40 + "0" * 88), params, Tag(6, 0, 0))
    nested = _zeros_block(inner + level("1" * 128 + "0" * (N - 128)), 128, len(inner) // 32, stored=False)
    yield make("zeros-nested", nested, _DATA)
    unknown = patch(bytes(64), {63: 7, 62: 9})
    yield make("zeros-of-an-unknown-kind", _zeros_block(unknown + mask, units=2, stored=False), _DATA, error=VERSION)
    other_mask = level("1" * 41 + "0" * (N - 41))
    yield make(
        "pair-zeros-of-an-unknown-kind", _zeros_block(unknown + other_mask, units=2, stored=False), _DATA, error=VERSION
    )
    yield make("pair-zeros-num-kept-of-an-unknown-kind", _zeros_block(unknown + mask, 1 << 31, 2, stored=False), _DATA)
    # Kinds that may not stand there, with rest 3.
    for name, tag in (("zeros", Tag(6, 3, 0)), ("parts", Tag(7, 3, 0, 5)), ("sparse", Tag(7, 3, 0, 3))):
        edit = _zeros_block(bytes(32 - len(tag.pack())) + tag.pack() + mask, units=1, stored=False)
        yield make(f"pair-zeros-of-{name}-with-rest-3", edit, _DATA, error=VERSION)
    base = bytes(2 * N)
    inner = pack_block(level("1"), b"", Tag(7, 0, 0, 3))
    edit = _zeros_block(inner + mask, units=1, stored=False)
    yield make("zeros-of-sparse", edit, bytes(2 * N), base=base)
    yield make("sparse-in-zeros-of-a-plain-frame", edit, bytes(2 * N))
    yield make("sparse-in-a-plain-frame", instead(level("1"), b"", 7, 0, 0, 3), bytes(2 * N))
    yield make("dense-in-a-plain-frame", instead(rans_zeros(N), bytes(4), 7, 0, 0, 4), bytes(2 * N))
    yield make("sparse-rest", instead(level("1"), b"", 7, 1, 0, 3), base, base=base)


def _masks() -> Iterator[Malformed]:
    """Masks of kind zeros; the first 40 words are kept, and say so in each of these masks."""
    ones, zeros = "1" * 4, "0" * 4
    level_2, level_1 = "111" + "0" * 16, ones + ones + "1100"
    streams = [level(level_2), level(level_1), level(ones * 10)]
    # The last group of 16 words begins at 288, and its fourth group of 4 at 300.
    behind = [level("111" + "0" * 15 + "1"), level(level_1 + "0001"), level(ones * 10 + zeros)]
    yield make("mask-behind-the-block", _zeros_block(_STORED + b"".join(behind), variant=2), _DATA)
    for i, name in enumerate(("2", "1", "0")):
        padded = [patch(stream, {-1: 0x80}) if i == j else stream for j, stream in enumerate(streams)]
        yield make(f"mask-padding-of-level-{name}", _zeros_block(_STORED + b"".join(padded), variant=2), _DATA)
    # The last group of 4 has two of the 302 words.
    behind = [level("1" * 10 + "0" * 65 + "1"), level(ones * 10 + "0010")]
    edit = _zeros_block(_STORED + b"".join(behind), variant=1)
    yield make("mask-behind-the-last-word", edit, _DATA + bytes(4))
    yield make("mask-cut", _zeros_block(_STORED, variant=2), _DATA)
    yield make("mask-variant-7", _zeros_block(_STORED + level(_FIRST_40), variant=7), _DATA)
    kinds = {"zeros": Zeros(Stored(), 6), "modal": Modal(6)}
    for name, kind in kinds.items():
        yield make(f"mask-of-gaps-of-{name}-in-fast", unchanged, _DATA, profile="fast", kind=kind)

    first = "0" + _golomb(40) + "00000" + "1" * 40  # not inverted, 40 members, k = 0, gaps of 0
    table = {
        "padding": patch(level(first), {-1: 0x81}),
        "too-many": level("0" + _golomb(301) + "00000" + "1" * 301),
        "behind-the-block": level("0" + _golomb(40) + "00000" + "1" * 39 + "0" * 261 + "1"),
        "huge-gap": level("0" + _golomb(40) + "11111" + "1" * 39 + "0" * 31 + "01" + "0" * 31),
        "unary-to-the-end": level("0" + _golomb(40) + "00000" + "1" * 39),
        "golomb-41": level("0" + "0" * 41 + "1" + "0" * 41 + "00000"),
        "golomb-to-the-end": bytes(8),
        "nothing": b"",
    }
    for name, stream in table.items():
        yield make(f"set-{name}", _zeros_block(_STORED + stream, variant=6), _DATA)


def _golomb(value: int, g: int = 0) -> str:
    """golomb(g): q zeros and a one, then q + g bits of value - (2^q - 1) * 2^g, lowest first."""
    q = ((value >> g) + 1).bit_length() - 1
    return "0" * q + "1" + (_low(value - ((1 << q) - 1 << g), q + g) if q + g else "")


def _modal() -> Iterator[Malformed]:
    words = (np.where(np.arange(N) == 7, 90, 100) << 7).astype("<u2").tobytes()
    modal: dict[str, Any] = {"kind": Modal(0)}
    yield make("modal-num-others-2", replace({-6: 2}), words, **modal)
    yield make("modal-num-others-huge", replace({-3: 0xFF}), words, **modal)
    for profile in ("enec", "resident"):
        yield make(f"modal-in-{profile}", unchanged, words, profile=profile, **modal)
    yield make("modal-of-integers", replace({-1: 7, -2: 2}), bytes(2 * N), dtype="I16", kind=Plain(), rest=Trimmed())
    rest = bytes(field_nbytes(N, 8))
    others = level("00000001" + "0" * (N - 8))
    yield make("modal-padding", instead(rest + others + b"\x5a\0\0\1", b"\x64\1\0\0\0", 7, 0, 0, 2), words)
    rest_of_f16 = bytes(field_nbytes(N, 11))
    all_15 = b"\0\x3c" * N
    edit = instead(rest_of_f16 + level("0" * N), bytes([15 + 32, 0, 0, 0, 0]), 7, 0, 0, 2)
    yield make("modal-mode-too-large", edit, all_15, dtype="F16")
    edit = instead(rest_of_f16 + others + b"\x0f\0\0\0" + b"\0\0\0\1", bytes([15, 1, 0, 0, 0]), 7, 0, 0, 2)
    yield make("modal-filler", edit, all_15, dtype="F16")
    # All words have another exponent than the mode, which is none.
    streams = level("1" * N) + pack_field(np.full(N, 15, np.uint64), 5)
    params = bytes([11, 0]) + struct.pack("<BI", 32, N)
    yield make("modal-mode-of-no-word", instead(streams, params, 7, 1, 0, 2), all_15, dtype="F16")


def _sparse() -> Iterator[Malformed]:
    base = bf16(N)
    new = patch(base, {10: base[10] + 1})  # word 5, one step up
    # Word 0 of the base has exponent 127: it is the one changed word of the last class whatever the order.
    first = level(2 * _golomb(0, 5) + _golomb(1, 5) + "00000" + "1" + "0" + "01")
    for name, thresholds in (("equal", [125, 125]), ("descend", [126, 125])):
        edit = instead(first, bytes(thresholds), 7, 0, 2, 3)
        yield make(f"sparse-thresholds-{name}", edit, patch(base, {0: base[0] + 1}), base=base)
    of_f8 = np.resize(np.arange(0x38, 0x58, dtype="u1"), N).tobytes()  # no word has exponent 15
    few, many = patch(of_f8, {10: of_f8[10] + 1}), bytes(word + 1 for word in of_f8)
    for kind, content in ((Sparse((15,)), few), (Dense((15,)), many)):
        name = f"{type(kind).__name__.lower()}-threshold-16-of-4-bits"
        yield make(name, replace({-3: 16}), content, dtype="F8_E4M3", kind=kind, base=of_f8)
    one = _golomb(1, 5)
    changed = one + "00000" + "000001" + "0"  # one word, k = 0, a gap of 5, plus
    table = {
        "more-changed-than-words": _golomb(301, 5) + "00000" + "10" * 301,
        "word-behind-the-block": one + "00000" + "0" * N + "1" + "0" + "01",
        "huge-gap": one + "11111" + "0" * 31 + "01" + "0" * 31 + "0" + "01",
        "set-of-two-of-one": changed + "0" + _TWO + "00000" + "11",
        "size-32769": changed[:-1] + "1" + ("1" + "1") * 3 + "111100" + "1" + _low(32769 - 4, 15),
        "size-plus-32768": changed + ("1" + "1") * 3 + "111100" + "1" + _low(32768 - 4, 15),
        "cut": changed[:-1],
    }
    for name, bits in table.items():
        yield make(f"sparse-{name}", instead(level(bits), b"", 7, 0, 0, 3), new, base=base)
    # The size is 2^64 + 2, which is the right one in arithmetic of 64 bits; q and g are 63 and 0, or 54 and 10.
    wide = np.arange(N, dtype="<u8") * 3
    two_up = wide + 2 * (np.arange(N) == 5).astype("<u8")
    for name, bits in (
        ("size-that-wraps", "000000" + "0" * 63 + "1" + "1" * 63),
        ("golomb-64", "010100" + "0" * 54 + "1" + _low(1022, 64)),
    ):
        edit = instead(level(changed + ("1" + "1") * 3 + bits), b"", 7, 0, 0, 3)
        yield make(f"sparse-{name}", edit, two_up.tobytes(), dtype="I64", base=wide.tobytes())
    right = level(changed + "0" + "1")
    assert len(right) == 4
    yield make("sparse-padding", instead(patch(right, {-1: 0x80}), b"", 7, 0, 0, 3), new, base=base)
    # One word that is a step higher; 30 bytes lie before the descriptor, whose first bit is 1.
    for name, gap, end in (("padding-in-the-descriptor", 215, "01"), ("last-bit-in-the-descriptor", 226, "0")):
        streams = bit_string(one + "00000" + "0" * gap + "1" + "0" + end)
        content = patch(base, {2 * gap: base[2 * gap] + 1})
        yield make(f"sparse-{name}", instead(streams, b"", 7, 0, 0, 3), content, base=base)
    yield make("sparse-nothing", instead(b"", b"", 7, 0, 0, 3), base, base=base)
    for dtype, word_nbytes in (("I16", 2), ("I64", 8), ("U8", 1)):
        content = bytes(N * word_nbytes)
        edit = instead(level("11"), b"\5", 7, 0, 1, 3)
        yield make(f"sparse-classes-of-{dtype}", edit, content, dtype=dtype, base=content)


def _low(value: int, g: int) -> str:
    """What follows the unary of golomb(g) of a value below 2^g."""
    assert value < 1 << g
    return f"{value:0{g}b}"[::-1]


def _dense() -> Iterator[Malformed]:
    base = bf16(N)
    new = patch(base, {10: base[10] + 1})
    yield make("dense-rest", replace({-1: 7 | 1 << 3 | 1 << 5}), new, kind=Dense((122,)), base=base)
    yield make("dense-padding", instead(rans_zeros(N) + b"\1\0\0\0", bytes(4), 7, 0, 0, 4), base, base=base)
    for count in (1, N + 1):
        signs = level("0" * count)
        edit = instead(rans_zeros(N) + signs, struct.pack("<I", count), 7, 0, 0, 4)
        yield make(f"dense-num-changed-of-{count}", edit, base, base=base)
    for symbol, sign in ((4 + 2 * 13, "0"), (4 + 2 * 13 + 1, "1"), (4 + 2 * 14, "1"), (255, "1")):
        symbols = np.zeros(N, np.uint64)
        symbols[5] = symbol
        streams = write_symbols(symbols) + level(sign) + level("0" * ((symbol - 4) // 2 + 1))
        yield make(f"dense-size-of-{symbol}", instead(streams, b"\1\0\0\0", 7, 0, 0, 4), new, base=base)
    # Sizes of 2^63 + 1, 2^64 - 1 and 2^64 + 1. In arithmetic of 64 bits the last two are steps of one up.
    wide = np.arange(N, dtype="<u8")
    one_up = (wide + (np.arange(N) == 5).astype("<u8")).tobytes()
    for symbol, sign, low in ((126, "0", 1), (127, "1", (1 << 62) - 1), (128, "0", 1)):
        symbols = np.where(np.arange(N) == 5, symbol, 0).astype(np.uint64)
        streams = write_symbols(symbols) + level(sign) + level(_low(low, (symbol - 4) // 2 + 1))
        edit = instead(streams, b"\1\0\0\0", 7, 0, 0, 4)
        yield make(f"dense-size-of-{symbol}-of-64-bits", edit, one_up, dtype="I64", base=wide.tobytes())
    ones = rans_zeros(N, table=bytes([1, 2, 1]) + bit_string("001"))
    yield make("dense-without-signs", instead(ones, struct.pack("<I", N), 7, 0, 0, 4), base, base=base)
    padded = patch(ones + level("0" * N), {-1: 0x80})
    yield make("dense-padding-of-signs", instead(padded, struct.pack("<I", N), 7, 0, 0, 4), base, base=base)
    yield make("dense-second-table-missing", instead(rans_zeros(N), b"\0\0\0\0\5", 7, 0, 1, 4), base, base=base)


MALFORMED_WORDS = (*_zeros(), *_masks(), *_modal(), *_sparse(), *_dense())
