"""Frames that break one rule of the format page each, with all checksums right, and the error that the page names.

Wherever it can be done, a decoder that overlooks the rule would return the right content: no other check catches them.
This module has those of the header, the index and the tags; its neighbours have those of the kinds.
"""

import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from reference.tensorwire_reference import (
    Bytes,
    Cascade,
    Constant,
    Enec,
    Entropy,
    Plain,
    Same,
    Sparse,
    Trimmed,
    Zeros,
    encode,
)
from reference.tensorwire_reference.header import seal_header
from tests.support.malformed_coders import MALFORMED_CODERS
from tests.support.malformed_words import MALFORMED_WORDS
from tests.support.malforming import (
    CORRUPT,
    LIMIT,
    MISMATCH,
    TRUNCATED,
    VERSION,
    Malformed,
    bf16,
    insert_unit,
    make,
    patch,
    replace,
    retag,
    unchanged,
)

__all__ = ["MALFORMED", "Malformed"]

_u64 = partial(struct.pack, "<Q")


# An F32 of no dimension, as version 0 had it: words per block as a power, padding to 64 bytes.
_VERSION_0 = (
    bytes.fromhex("935457460d0a1a0a 0002000000000000 4633320000000000 0000000000000000 20000b0000000000")
    + struct.pack("<3Q", 4, 32, 1)
    + bytes.fromhex("417578eaf1e419cc9ea2e71284545021")
    + bytes(40)
    + bytes.fromhex("dc276ab26b00a502 000000003353 0bf4")
    + bytes(56)
    + bytes.fromhex("0100c07f").ljust(64, b"\0")
)


def _plain_frame() -> bytes:
    """A frame of two coded blocks, with 8 bytes of padding behind the index, which begins at 136."""
    frame = encode(bf16(), "BF16", (300,), profile="compact", block_words=256, kind=Cascade(variant=1))
    assert frame[152:160] == bytes(8)
    return frame


def _relative_frame() -> bytes:
    """As above, of three blocks; the second one is same. The index begins at 136."""
    return encode(_content(), "BF16", (600,), block_words=256, kind=[Sparse(), Same(), Sparse()], base=bf16(600))


def _edited(frame: bytes, *edits: tuple[int, bytes]) -> bytes:
    """With bytes of the header replaced, and its checksum right."""
    for offset, value in edits:
        frame = frame[:offset] + value + frame[offset + len(value) :]
    return seal_header(frame[:160]) + frame[160:]


def _headers() -> Iterator[Malformed]:
    table: list[tuple[str, int, bytes, str]] = [
        ("magic", 0, b"\x92", CORRUPT),
        ("version-0", 8, b"\x00", VERSION),
        ("version-2", 8, b"\x02", VERSION),
        ("profile", 9, b"\x04", CORRUPT),
        ("element-order-1", 10, b"\x01", VERSION),
        ("element-order-255", 10, b"\xff", VERSION),
        ("ndim", 11, b"\x41", LIMIT),
        *((f"required-feature-{bit}", 12 + bit // 8, bytes([1 << bit % 8]), VERSION) for bit in (1, 2, 3, 4, 8, 31)),
        ("dtype-lowercase", 16, b"bf16", CORRUPT),
        ("dtype-empty", 16, bytes(16), CORRUPT),
        ("dtype-gap", 16, b"BF16\0X", CORRUPT),
        ("bits-0", 32, b"\x00\x00", CORRUPT),
        ("bits-1025", 32, b"\x01\x04", CORRUPT),
        ("bits-of-another-dtype", 32, b"\x20\x00", CORRUPT),
        ("block-words-0", 36, bytes(4), CORRUPT),
        ("block-words-128", 36, b"\x80\x00", CORRUPT),
        ("block-words-257", 36, b"\x01\x01", CORRUPT),
        ("block-words-past-2-18", 36, b"\x00\x01\x04", CORRUPT),
        *((f"reserved-{i}", i, b"\x01", CORRUPT) for i in (34, 35, *range(96, 120, 5))),
        *((f"base-hash-{i}", i, b"\x01", CORRUPT) for i in (80, 95)),
        ("uncompressed-nbytes", 40, _u64(601), CORRUPT),
        ("uncompressed-nbytes-cap", 40, _u64((1 << 62) + 1), LIMIT),
        ("data-nbytes-not-units", 48, b"\x01", CORRUPT),
        ("data-nbytes-cap", 48, _u64((1 << 37) + 32), LIMIT),
        ("data-nbytes-past-cap-not-units", 48, _u64((1 << 37) + 1), LIMIT),
        ("num-blocks", 56, _u64(1), CORRUPT),
        ("num-blocks-at-cap", 56, _u64(1 << 32), CORRUPT),
        ("num-blocks-cap", 56, _u64((1 << 32) + 1), LIMIT),
        ("num-blocks-huge", 56, _u64((1 << 64) - 1), LIMIT),
        ("content-hash", 64, b"\x00", CORRUPT),  # only for readers that compare it
        ("shape", 128, _u64(301), CORRUPT),
        ("shape-cap", 128, _u64(1 << 62), LIMIT),
        ("index-first-offset", 136, b"\x01", CORRUPT),
        ("index-equal-offsets", 144, b"\x00", CORRUPT),
        ("index-offset-at-end", 144, b"\xff", CORRUPT),
        ("index-block-checksum", 140, b"\x00\x00", CORRUPT),
        ("index-padding", 159, b"\x01", CORRUPT),
    ]
    for name, offset, value, error in table:
        yield Malformed(f"header-{name}", lambda o=offset, v=value: _edited(_plain_frame(), (o, v)), error)
    yield Malformed("header-checksum", lambda: patch(_plain_frame(), {120: _plain_frame()[120] ^ 1}), CORRUPT)
    yield Malformed("frame-followed", lambda: _plain_frame() + bytes(32), CORRUPT)
    yield Malformed("frame-cut", lambda: _plain_frame()[:-1], TRUNCATED)
    yield Malformed("frame-empty", lambda: b"", TRUNCATED)
    yield Malformed("frame-of-something-else", lambda: b"{}", CORRUPT)
    yield Malformed("frame-of-version-0", lambda: _VERSION_0, VERSION)
    yield Malformed("header-data-without-blocks", _data_without_blocks, CORRUPT)
    yield Malformed("header-block-too-long", _block_too_long, CORRUPT)


def _data_without_blocks() -> bytes:
    return _edited(encode(b"", "BF16", (0,)), (48, _u64(32))) + bytes(32)


def _block_too_long() -> bytes:
    """A second block of 44 words that takes 128 bytes, though it is 96 when stored."""
    frame = encode(np.arange(300, dtype="<u2").tobytes(), "U16", (300,), block_words=256)
    return _edited(frame, (48, _u64(512 + 128))) + bytes(32)


def _pairs() -> Iterator[Malformed]:
    """Two rules broken at once: the page's order of checks says which error it is."""
    version, feature, profile = (8, b"\x02"), (12, b"\x04"), (9, b"\x04")
    order, ndim, bits, block_words = (10, b"\x01"), (11, b"\x41"), (32, b"\0\0"), (36, bytes(4))
    nbytes, data, blocks = (40, _u64((1 << 62) + 1)), (48, _u64((1 << 37) + 32)), (56, _u64((1 << 32) + 1))
    table: dict[str, tuple[tuple[int, bytes], tuple[int, bytes], str]] = {
        "magic-version": ((0, b"\x92"), version, CORRUPT),
        "version-profile": (version, profile, VERSION),
        "feature-profile": (feature, profile, VERSION),
        "profile-order": (profile, order, CORRUPT),
        "order-ndim": (order, ndim, VERSION),
        "ndim-bits": (ndim, bits, LIMIT),
        "bits-nbytes": (bits, nbytes, CORRUPT),
        "block-words-nbytes": (block_words, nbytes, CORRUPT),
        "data-blocks": ((48, b"\x01"), blocks, CORRUPT),
        "blocks-reserved": (blocks, (96, b"\x01"), LIMIT),
        "data-reserved": (data, (96, b"\x01"), LIMIT),
        "reserved-shape": ((96, b"\x01"), (128, _u64(1 << 62)), CORRUPT),
        "shape-nbytes": ((128, _u64(1 << 62)), (40, _u64(1)), LIMIT),
    }
    for name, (first, second, error) in table.items():
        yield Malformed(f"pair-{name}", lambda a=first, b=second: _edited(_plain_frame(), a, b), error)
    yield Malformed("pair-shape-checksum", lambda: patch(_plain_frame(), {120: 1, 135: 0x40}), LIMIT)
    yield Malformed("pair-index-cut", lambda: _edited(_plain_frame(), (136, b"\x01"))[:-1], CORRUPT)
    yield Malformed("pair-cut-and-base", lambda: _relative_frame()[:-1], TRUNCATED)
    yield Malformed("pair-followed-and-base", lambda: _relative_frame() + bytes(32), CORRUPT)


def _relative() -> Iterator[Malformed]:
    base = bf16(600)
    table: list[tuple[str, tuple[int, bytes], str]] = [
        ("resident", (9, b"\x03"), CORRUPT),
        ("base-hash", (80, b"\x00"), MISMATCH),
        ("num-blocks", (56, _u64(4)), CORRUPT),
        ("first-offset", (136, b"\x01"), CORRUPT),
        ("offset-at-end", (144, b"\xff"), CORRUPT),
        ("offset-behind-the-next", (144, b"\x02"), CORRUPT),
        ("same-with-checksum", (148, b"\x01"), CORRUPT),
        ("checksum-of-block", (140, b"\x00\x00"), CORRUPT),
    ]
    for name, edit, error in table:
        yield Malformed(f"relative-{name}", lambda e=edit: _edited(_relative_frame(), e), error, base)
    yield Malformed("relative-without-base", _relative_frame, MISMATCH)
    yield Malformed("relative-other-base", _relative_frame, MISMATCH, patch(base, {7: 1}))
    yield Malformed("relative-shorter-base", _relative_frame, MISMATCH, base[:-2])
    yield Malformed("relative-longer-base", _relative_frame, MISMATCH, base + b"\0\0")
    yield Malformed("relative-base-is-the-content", _relative_frame, MISMATCH, _content())
    same = encode(base, "BF16", (600,), block_words=256, base=base)
    yield Malformed("relative-same-of-another", lambda: _edited(same, (64, b"\0\0")), CORRUPT, base)
    yield Malformed("relative-same-with-data", lambda: _edited(same, (48, _u64(32))) + bytes(32), CORRUPT, base)
    empty = encode(b"", "BF16", (0,), base=b"")
    yield Malformed("relative-data-without-blocks", lambda: _edited(empty, (48, _u64(32))) + bytes(32), CORRUPT, b"")


def _content() -> bytes:
    new = bytearray(bf16(600))
    new[20] ^= 2
    new[-20] ^= 2
    return bytes(new)


def _tags() -> Iterator[Malformed]:
    cascade: dict[str, Any] = {"kind": Cascade(variant=1, lo=124, below=(1, 2, 0))}
    plain: dict[str, Any] = {"kind": Plain(), "rest": Trimmed()}
    words, same = bf16(), b"\x80\x3f" * 300
    yield make("stored-padding", replace({-1: 1}), words)
    yield make("padding-set", replace({-15: 1}), words, **cascade)
    yield make("padding-of-a-unit", insert_unit(14), words, **cascade)
    yield make("streams-too-short", lambda block: block[32:], words, **cascade)
    yield make("kind-0", retag(3), words, error=VERSION, **cascade)
    yield make("rest-3", retag(3 << 3), words, error=VERSION, **cascade)
    yield make("rest-3-of-constant", retag(3 << 3), same, error=VERSION, kind=Constant())
    for extended in (0, 5, 255):
        edit = replace({-1: 7, -2: extended})
        yield make(f"extended-kind-{extended}", edit, words, error=VERSION, **cascade)
        yield make(f"extended-kind-{extended}-in-enec", edit, words, error=VERSION, profile="enec", **plain)
    yield make("plain-rest-0", retag(1 << 3), words, **plain)
    yield make("plain-variant", retag(1 << 5), words, **plain)
    yield make("constant-rest", retag(1 << 3), same, kind=Constant())
    yield make("constant-variant", retag(1 << 5), same, kind=Constant())
    yield make("constant-two-units", insert_unit(3), same, kind=Constant())
    yield make("constant-padding", replace({0: 1}), same, kind=Constant())
    second: dict[str, Any] = {"kind": Cascade(variant=0, table=2)}
    table: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        ("enec", ("resident",), {"kind": Enec()}),
        ("enec-bytes", ("enec", "fast"), {"kind": Enec(), "rest": Bytes()}),
        ("cascade", ("enec", "resident"), cascade),
        ("cascade-bytes", ("fast",), {**cascade, "rest": Bytes()}),
        ("second-table", ("enec",), second),
        ("second-table-trimmed", ("resident",), {**second, "rest": Trimmed()}),
        ("second-table-bytes", ("fast", "resident"), {**second, "rest": Bytes()}),
        ("entropy", ("enec", "fast", "resident"), {"kind": Entropy()}),
        ("plain", ("resident",), plain),
        ("plain-bytes", ("enec", "fast"), {"kind": Plain(), "rest": Bytes()}),
    ]
    for name, profiles, options in table:
        for profile in profiles:
            yield make(f"{name}-in-{profile}", unchanged, bf16(600), profile=profile, **options)
    integers = (np.arange(400) % 7).astype("<u4").tobytes()
    yield make("exponent-kind-of-integers", retag(5 ^ 3), integers, dtype="I32", **plain)
    nested = Zeros(inner=Plain(), variant=2)
    yield make("zeros-in-enec", unchanged, words + bytes(500), profile="enec", kind=nested, rest=Trimmed())


MALFORMED = (*_headers(), *_pairs(), *_relative(), *_tags(), *MALFORMED_CODERS, *MALFORMED_WORDS)
