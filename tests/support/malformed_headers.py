"""Malformed frames whose header breaks a rule: fields, layouts, index, extensions, padding, and the base."""

import struct
from collections.abc import Iterator
from functools import partial

import numpy as np

from reference.tensorwire_reference import Cascade, Constant, Plain, Same, Sparse, Stored, encode
from reference.tensorwire_reference.encoder import pack_frame
from reference.tensorwire_reference.hashes import content_hash
from reference.tensorwire_reference.header import Header, seal_header
from reference.tensorwire_reference.layouts import TABLE
from tests.support.malforming import CORRUPT, LIMIT, MISMATCH, TRUNCATED, VERSION, Malformed, bf16, patch

_u64 = partial(struct.pack, "<Q")
_HUGE = (48, _u64(1 << 43)), (128, _u64(1 << 42))  # 2^34 blocks of 256 words

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
    """A frame of two coded blocks; the index begins at 136 and ends at 152, 8 bytes before the blocks."""
    return encode(bf16(), "BF16", (300,), profile="compact", block_words=256, kind=Cascade(variant=1))


def _relative_frame() -> bytes:
    """As above, of three blocks; the second one is same. The index begins at 136."""
    return encode(_content(), "BF16", (600,), block_words=256, kind=[Sparse(), Same(), Sparse()], base=bf16(600))


def _content() -> bytes:
    return patch(bf16(600), {20: bf16(600)[20] ^ 2, -20: bf16(600)[-20] ^ 2})


def _extended_frame() -> bytes:
    """Two extensions: tag 1 at 152, its 4 bytes at 160; tag 9 at 168, its 3 bytes at 176; header_nbytes is 192."""
    extensions = {1: b"\7\0\0\0", 9: b"abc"}
    frame = encode(bf16(), "BF16", (300,), block_words=256, kind=Cascade(variant=1), extensions=extensions)
    assert (
        frame[152:192].hex(" ", 4) == "01000000 04000000 07000000 00000000 09000000 03000000 61626300" + 3 * " 00000000"
    )
    return frame


def _edited(frame: bytes, *edits: tuple[int, bytes]) -> bytes:
    """With bytes of the header replaced, and both its checksums right."""
    header_nbytes = int.from_bytes(frame[56:64], "little")
    for offset, value in edits:
        frame = frame[:offset] + value + frame[offset + len(value) :]
    return seal_header(frame[:header_nbytes]) + frame[header_nbytes:]


def _headers() -> Iterator[Malformed]:
    table: list[tuple[str, int, bytes, str]] = [
        ("magic", 0, b"\x92", CORRUPT),
        ("version-0", 8, b"\x00", VERSION),
        ("version-2", 8, b"\x02", VERSION),
        ("profile", 9, b"\x04", CORRUPT),
        ("element-order-1", 10, b"\x01", VERSION),
        ("element-order-255", 10, b"\xff", VERSION),
        ("ndim", 11, b"\x41", LIMIT),
        *((f"required-feature-{bit}", 12 + bit // 8, bytes([1 << bit % 8]), VERSION) for bit in (*range(1, 9), 31)),
        ("hash-algorithm-1", 20, b"\x01", VERSION),
        ("hash-algorithm-255", 20, b"\xff", VERSION),
        *((f"block-alignment-{log2}", 21, bytes([log2]), CORRUPT) for log2 in (0, 4, 13, 31, 255)),
        *((f"frame-alignment-{log2}", 22, bytes([log2]), CORRUPT) for log2 in (0, 4, 22, 31, 255)),
        ("block-alignment-past-the-frame", 21, b"\x06", CORRUPT),
        *((f"reserved-{i}", i, b"\x01", CORRUPT) for i in (23, 29)),
        ("bits-0", 30, b"\x00\x00", CORRUPT),
        ("bits-1025", 30, b"\x01\x04", CORRUPT),
        ("bits-24", 30, b"\x18\x00", CORRUPT),
        ("bits-32", 30, b"\x20\x00", CORRUPT),
        ("dtype-lowercase", 32, b"bf16", CORRUPT),
        ("dtype-empty", 32, bytes(16), CORRUPT),
        ("dtype-gap", 32, b"BF16\0X", CORRUPT),
        ("uncompressed-nbytes", 48, _u64(601), CORRUPT),
        ("uncompressed-nbytes-cap", 48, _u64((1 << 53) + 1), LIMIT),
        ("header-nbytes-not-aligned", 56, _u64(168), CORRUPT),
        ("header-nbytes-without-room", 56, _u64(128), CORRUPT),
        ("header-nbytes-0", 56, _u64(0), CORRUPT),
        ("header-nbytes-cap", 56, _u64((1 << 37) + 32), LIMIT),
        ("header-nbytes-past-cap-not-aligned", 56, _u64((1 << 37) + 1), LIMIT),
        ("header-nbytes-at-cap", 56, _u64(1 << 37), TRUNCATED),
        ("data-nbytes-not-units", 64, b"\x01", CORRUPT),
        ("data-nbytes-cap", 64, _u64(1 << 36), LIMIT),
        ("data-nbytes-past-cap-not-units", 64, _u64((1 << 36) + 1), LIMIT),
        ("block-words-0", 72, bytes(4), CORRUPT),
        ("block-words-128", 72, b"\x80\x00", CORRUPT),
        ("block-words-257", 72, b"\x01\x01", CORRUPT),
        ("block-words-past-2-18", 72, b"\x00\x01\x04", CORRUPT),
        ("padding-not-aligned", 76, b"\x08", CORRUPT),
        ("padding-cap", 76, struct.pack("<I", (1 << 22) + 32), CORRUPT),
        ("padding-cut", 76, b"\x20", TRUNCATED),
        ("content-hash", 80, b"\x00", CORRUPT),  # only for readers that compare it
        *((f"base-hash-{i}", i, b"\x01", CORRUPT) for i in (96, 111)),
        ("shape", 128, _u64(301), CORRUPT),
        ("shape-cap", 128, _u64((1 << 52) + 1), LIMIT),
        ("shape-far-past-cap", 128, _u64((1 << 64) - 1), LIMIT),
    ]
    for name, offset, value, error in table:
        yield Malformed(f"header-{name}", lambda o=offset, v=value: _edited(_plain_frame(), (o, v)), error)
    many = (48, _u64(1 << 21)), (128, _u64(1 << 20))
    yield Malformed("header-num-blocks", lambda: _edited(_plain_frame(), *many), CORRUPT)
    yield Malformed("header-num-blocks-cap", lambda: _edited(_plain_frame(), *_HUGE), LIMIT)
    for name, offset in (("header", 120), ("index", 112)):
        yield Malformed(f"header-checksum-of-{name}", lambda o=offset: _flipped(o), CORRUPT)
    yield Malformed("header-block-too-long", _block_too_long, CORRUPT)
    yield Malformed("header-data-without-blocks", _data_without_blocks, CORRUPT)
    yield Malformed("frame-followed", lambda: _plain_frame() + bytes(32), CORRUPT)
    yield Malformed("frame-cut", lambda: _plain_frame()[:-1], TRUNCATED)
    yield Malformed("frame-empty", lambda: b"", TRUNCATED)
    yield Malformed("frame-of-something-else", lambda: b"{}", CORRUPT)
    yield Malformed("frame-of-version-0", lambda: _VERSION_0, VERSION)


def _flipped(offset: int) -> bytes:
    """One of the two checksums wrong, the other one right."""
    frame = _plain_frame()
    frame = patch(frame, {offset: frame[offset] ^ 1})
    return frame if offset == 120 else frame[:120] + seal_header(frame[:136] + bytes(24))[120:128] + frame[128:]


def _data_without_blocks() -> bytes:
    return _edited(encode(b"", "BF16", (0,)), (64, _u64(32))) + bytes(32)


def _block_too_long() -> bytes:
    """A second block of 44 words that takes 128 bytes, though it is 96 when stored."""
    frame = encode(np.arange(300, dtype="<u2").tobytes(), "U16", (300,), block_words=256)
    return _edited(frame, (64, _u64(512 + 128))) + bytes(32)


def _layouts() -> Iterator[Malformed]:
    """Layouts that contradict themselves, or the bits per element; by the layout's five bytes, which begin at 24."""
    words = {1: bytes(range(64)), 2: bf16(64), 4: bf16(64), 8: bf16(64)}
    table: list[tuple[str, str, tuple[int, int, int, int, int]]] = [
        *((f"word-nbytes-{w}", "BF16", (w, 8, 8, 1, 1)) for w in (0, 3, 16, 255)),
        *((f"exponent-bits-{e}", "F32", (4, e, 32 - e, 1, 1)) for e in (9, 16, 31)),
        ("exponent-bits-0-of-a-float", "BF16", (2, 0, 8, 1, 1)),
        ("exponent-bits-0-with-a-split", "BF16", (2, 0, 0, 1, 1)),
        ("exponent-bits-0-with-a-rest", "BF16", (2, 0, 16, 0, 1)),
        ("exponent-bits-32", "F32", (4, 32, 0, 2, 0)),
        ("exponent-bits-255", "BF16", (2, 255, 17, 2, 0)),
        ("exponent-bits-without-split", "BF16", (2, 8, 8, 0, 1)),
        *((f"rest-bits-{r}", "BF16", (2, 8, r, 1, 1)) for r in (0, 7, 9, 24, 255)),
        *((f"split-{split}", "BF16", (2, 8, 8, split, 1)) for split in (4, 255)),
        ("float-without-a-rest", "F8_E8M0", (1, 8, 0, 1, 0)),
        *((f"ordered-{ordered}", "BF16", (2, 8, 8, 1, ordered)) for ordered in (2, 255)),
        ("words-past-the-element", "BF16", (4, 8, 24, 1, 1)),
        ("words-that-split-the-element", "I16", (8, 0, 0, 0, 0)),
    ]
    for name, dtype, layout in table:
        data = words[TABLE[dtype][1].word_nbytes]
        shape = (len(data) * 8 // TABLE[dtype][0],)
        frame = encode(data, dtype, shape, kind=Stored())
        yield Malformed(f"layout-{name}", lambda f=frame, v=layout: _edited(f, (24, bytes(v))), CORRUPT)


def _index() -> Iterator[Malformed]:
    table: list[tuple[str, int, bytes]] = [
        ("first-start", 136, b"\x01"),
        ("equal-starts", 144, b"\x00"),
        ("start-at-end", 144, b"\xff"),
        ("block-checksum", 140, b"\x00\x00"),
        ("padding", 159, b"\x01"),
        ("stored-bit-of-a-short-block", 139, b"\x80"),
    ]
    for name, offset, value in table:
        yield Malformed(f"index-{name}", lambda o=offset, v=value: _edited(_plain_frame(), (o, v)), CORRUPT)
    # A decoder that infers from its size that a block is stored would decode these.
    noise = bytes(range(7, 70)) + b"\1"  # as a coded block it is constant, and longer than one
    stored = encode(noise, "U8", (64,), kind=Stored())
    yield Malformed("index-stored-block-without-the-bit", lambda: _edited(stored, (139, b"\0")), CORRUPT)
    coded = encode(b"\x80\x3f" * 5, "BF16", (5,), kind=Constant())
    yield Malformed("index-coded-block-of-raw-bytes-with-the-bit", lambda: _edited(coded, (139, b"\x80")), CORRUPT)


def _extensions() -> Iterator[Malformed]:
    table: list[tuple[str, int, bytes]] = [
        ("repeated", 168, b"\x01"),
        ("descending", 152, b"\x0a"),
        ("length-past-the-header", 172, b"\x11"),
        ("length-2-32-less-1", 172, b"\xff\xff\xff\xff"),
        ("length-of-the-last-past-the-header", 184, b"\x0a\0\0\0\x01"),
        ("encoder-of-3-bytes", 156, b"\x03"),
        ("encoder-of-5-bytes", 156, b"\x05"),
        ("encoder-of-8-bytes", 156, b"\x08"),
        ("padding", 164, b"\x01"),
        ("padding-at-the-end", 183, b"\x80"),
        ("content-in-the-padding", 179, b"d"),
        ("end-with-a-length", 188, b"\x01"),
        ("bytes-behind-the-end", 152, b"\0\0\0\0"),
    ]
    for name, offset, value in table:
        yield Malformed(f"extension-{name}", lambda o=offset, v=value: _edited(_extended_frame(), (o, v)), CORRUPT)
    base = bf16(600)
    same = encode(base, "BF16", (600,), base=base, extensions={7: b"12345678"})
    for name, edit in (("length-past-the-header", (140, b"\x21")), ("bytes-behind-the-end", (159, b"\1"))):
        yield Malformed(f"extension-of-same-{name}", lambda e=edit: _edited(same, e), CORRUPT, base)


def _padding() -> Iterator[Malformed]:
    frame = encode(bf16(), "BF16", (300,), frame_alignment=512, padding_nbytes=600)
    for name, offset in (("first", -600), ("last", -1)):
        yield Malformed(f"padding-{name}-byte", lambda o=offset: patch(frame, {o: 1}), CORRUPT)
    yield Malformed("padding-cut", lambda: frame[:-1], TRUNCATED)
    yield Malformed("padding-followed", lambda: frame + bytes(32), CORRUPT)
    yield Malformed("pair-padding-set-and-cut", lambda: patch(frame, {-600: 1})[:-1], TRUNCATED)
    base = bf16()
    relative = encode(base, "BF16", (300,), base=base, padding_nbytes=32)
    yield Malformed("padding-of-same", lambda: patch(relative, {-1: 1}), CORRUPT, base)
    yield Malformed("pair-padding-and-base", lambda: patch(relative, {-1: 1}), CORRUPT)
    # Aligned to 64 bytes: a multiple of 32 is not enough for the blocks, the header, nor the frame.
    aligned = encode(bf16(), "BF16", (300,), kind=Plain(), block_alignment=64)
    nbytes = int.from_bytes(aligned[64:72], "little")
    yield Malformed("aligned-data-nbytes", lambda: _edited(aligned, (64, _u64(nbytes - 32)), (76, b"\x20")), CORRUPT)
    yield Malformed("aligned-header-nbytes", lambda: _edited(aligned, (56, _u64(160)), (76, b"\x20")), CORRUPT)
    yield Malformed("aligned-padding", lambda: _edited(aligned, (76, b"\x20")) + bytes(32), CORRUPT)


def _pairs() -> Iterator[Malformed]:
    """Two rules broken at once: the page's order of checks says which error it is."""
    version, feature, profile = (8, b"\x02"), (12, b"\x04"), (9, b"\x04")
    order, ndim, algorithm, alignment = (10, b"\x01"), (11, b"\x41"), (20, b"\x01"), (21, b"\x1f")
    bits, nbytes, header = (30, b"\0\0"), (48, _u64((1 << 53) + 1)), (56, _u64((1 << 37) + 32))
    data, block_words, padding, shape = (64, _u64(1 << 36)), (72, bytes(4)), (76, b"\x08"), (128, _u64(1 << 62))
    table: dict[str, tuple[tuple[int, bytes], tuple[int, bytes], str]] = {
        "magic-version": ((0, b"\x92"), version, CORRUPT),
        "version-feature": (version, feature, VERSION),
        "version-profile": (version, profile, VERSION),
        "feature-profile": (feature, profile, VERSION),
        "profile-order": (profile, order, CORRUPT),
        "order-ndim": (order, ndim, VERSION),
        "ndim-algorithm": (ndim, algorithm, LIMIT),
        "algorithm-alignment": (algorithm, alignment, VERSION),
        "alignment-nbytes": (alignment, nbytes, CORRUPT),
        "layout-nbytes": ((25, b"\x20"), nbytes, CORRUPT),
        "bits-nbytes": (bits, nbytes, CORRUPT),
        "dtype-header": ((32, b"bf16"), header, CORRUPT),
        "nbytes-header": (nbytes, (56, _u64(168)), LIMIT),
        "header-data": ((56, _u64(168)), data, CORRUPT),
        "data-block-words": (data, block_words, LIMIT),
        "block-words-shape": (block_words, shape, CORRUPT),
        "padding-shape": (padding, shape, CORRUPT),
        "base-hash-shape": ((96, b"\x01"), shape, CORRUPT),
        "shape-nbytes": (shape, (48, _u64(1)), LIMIT),
        "nbytes-num-blocks": (_HUGE[1], (48, _u64(600)), CORRUPT),
    }
    for name, (first, second, error) in table.items():
        yield Malformed(f"pair-{name}", lambda a=first, b=second: _edited(_plain_frame(), a, b), error)
    room = (56, _u64(128))
    yield Malformed("pair-num-blocks-room", lambda: _edited(_plain_frame(), *_HUGE, room), LIMIT)
    yield Malformed("pair-shape-checksum", lambda: patch(_plain_frame(), {120: 1, 135: 0x40}), LIMIT)
    yield Malformed("pair-header-checksum-cut", lambda: _flipped(120)[:140], CORRUPT)
    yield Malformed("pair-index-cut", lambda: _edited(_plain_frame(), (136, b"\x01"))[:-1], CORRUPT)
    yield Malformed("pair-cut-and-base", lambda: _relative_frame()[:-1], TRUNCATED)
    yield Malformed("pair-followed-and-base", lambda: _relative_frame() + bytes(32), CORRUPT)


def _relative() -> Iterator[Malformed]:
    base = bf16(600)
    table: list[tuple[str, tuple[int, bytes], str]] = [
        ("resident", (9, b"\x03"), CORRUPT),
        ("base-hash", (96, b"\x00"), MISMATCH),
        ("first-start", (136, b"\x01"), CORRUPT),
        ("start-at-end", (144, b"\xff"), CORRUPT),
        ("start-behind-the-next", (144, b"\x02"), CORRUPT),
        ("same-with-checksum", (148, b"\x01"), CORRUPT),
        ("same-that-is-stored", (147, b"\x80"), CORRUPT),
        ("checksum-of-block", (140, b"\x00\x00"), CORRUPT),
    ]
    for name, edit, error in table:
        yield Malformed(f"relative-{name}", lambda e=edit: _edited(_relative_frame(), e), error, base)
    yield Malformed("relative-num-blocks-cap", lambda: _edited(_relative_frame(), *_HUGE), LIMIT, base)
    yield Malformed("relative-without-base", _relative_frame, MISMATCH)
    yield Malformed("relative-other-base", _relative_frame, MISMATCH, patch(base, {7: 1}))
    yield Malformed("relative-shorter-base", _relative_frame, MISMATCH, base[:-2])
    yield Malformed("relative-longer-base", _relative_frame, MISMATCH, base + b"\0\0")
    yield Malformed("relative-base-is-the-content", _relative_frame, MISMATCH, _content())
    same = encode(base, "BF16", (600,), block_words=256, base=base)
    yield Malformed("relative-same-of-another", lambda: _edited(same, (80, b"\0\0")), CORRUPT, base)
    yield Malformed("relative-same-of-another-without-base", lambda: _edited(same, (80, b"\0\0")), CORRUPT)
    yield Malformed("relative-same-with-data", lambda: _edited(same, (64, _u64(32))) + bytes(32), CORRUPT, base)
    empty = encode(b"", "BF16", (0,), base=b"")
    yield Malformed("relative-data-without-blocks", lambda: _edited(empty, (64, _u64(32))) + bytes(32), CORRUPT, b"")
    for numel in (300, 1 << 40):
        yield Malformed(f"relative-same-of-{numel}-words", partial(_same_of_another_size, numel), MISMATCH, base)


def _same_of_another_size(numel: int) -> bytes:
    """The hash of the base is right, but the frame claims another size."""
    found = content_hash(bf16(600))
    return pack_frame(Header("fast", "BF16", *TABLE["BF16"], 256, (numel,), found, found), [])


MALFORMED_HEADERS = (
    *_headers(),
    *_layouts(),
    *_index(),
    *_extensions(),
    *_padding(),
    *_pairs(),
    *_relative(),
)
