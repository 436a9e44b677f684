"""Malformed frames whose header breaks a rule: fields, layouts, index, extensions, padding, and the base."""

import struct
from collections.abc import Iterator
from functools import partial

from reference.tensorwire_reference import Cascade, Constant, Layout, Plain, Same, Sparse, Stored, encode
from reference.tensorwire_reference.encoder import pack_frame
from reference.tensorwire_reference.hashes import content_hash, h128
from reference.tensorwire_reference.header import Header, seal_header
from reference.tensorwire_reference.layouts import TABLE
from tests.support.malforming import (
    CORRUPT,
    LIMIT,
    MISMATCH,
    TRUNCATED,
    VERSION,
    Malformed,
    bf16,
    instead,
    one_block,
    patch,
)

_u32, _u64 = partial(struct.pack, "<I"), partial(struct.pack, "<Q")


def _edited(frame: bytes, *edits: tuple[int, bytes], wider: int = 0, behind: bytes = b"") -> bytes:
    """With bytes of the header replaced, and both its checksums right. wider: by so many zeros, which may be fewer."""
    header_nbytes = int.from_bytes(frame[56:64], "little")
    head, blocks = frame[:header_nbytes] + bytes(max(wider, 0)), frame[header_nbytes:]
    for offset, value in edits:
        head = head[:offset] + value + head[offset + len(value) :]
    return seal_header(head[: header_nbytes + wider]) + blocks + behind


def _with_gap(frame: bytes, num_blocks: int) -> bytes:
    """With 32 zeros before the first block, which the starts of all blocks allow for. The index begins at 136."""
    starts = [
        (at, _u32(int.from_bytes(frame[at : at + 4], "little") + 1)) for at in range(136, 136 + 8 * num_blocks, 8)
    ]
    frame = _edited(frame, *starts, (64, _u64(int.from_bytes(frame[64:72], "little") + 32)))
    header_nbytes = int.from_bytes(frame[56:64], "little")
    return frame[:header_nbytes] + bytes(32) + frame[header_nbytes:]


_BASE = bf16(600)
_CONTENT = patch(_BASE, {20: _BASE[20] ^ 2, -20: _BASE[-20] ^ 2})
# Two coded blocks; the index begins at 136 and ends at 152, 8 bytes before the blocks.
_PLAIN = encode(bf16(), "BF16", (300,), profile="compact", block_words=256, kind=Cascade(variant=1))
# Three blocks, of which the second one is same. The index begins at 136 and ends at the blocks.
_RELATIVE = encode(_CONTENT, "BF16", (600,), block_words=256, kind=[Sparse(), Same(), Sparse()], base=_BASE)
_SAME = encode(_BASE, "BF16", (600,), block_words=256, base=_BASE)
# Tag 1 stands at 152, its 4 bytes at 160; tag 9 at 168, its 3 bytes at 176; header_nbytes is 192.
_EXTENSIONS = {1: b"\7\0\0\0", 9: b"abc"}
_EXTENDED = encode(bf16(), "BF16", (300,), block_words=256, kind=Cascade(variant=1), extensions=_EXTENSIONS)
_EMPTY = encode(b"", "BF16", (0,))
_EMPTY_RELATIVE = encode(b"", "BF16", (0,), base=b"")
_STORED_32 = encode(bytes(range(32)), "U8", (32,), kind=Stored())  # its one block has 32 bytes in units of 1 to 32
_ALIGNED = encode(bf16(), "BF16", (300,), kind=Plain(), block_alignment=64)
_ALIGNED_DATA = int.from_bytes(_ALIGNED[64:72], "little")
_DATA = int.from_bytes(_PLAIN[64:72], "little")

_HUGE = (48, _u64(1 << 43)), (128, _u64(1 << 42))  # 2^34 blocks of 256 words
_plain = partial(_edited, _PLAIN)

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


def _made(name: str, frame: bytes, error: str = CORRUPT, base: bytes | None = None) -> Malformed:
    return Malformed(name, lambda: frame, error, base)


def _fields() -> Iterator[Malformed]:
    """One field of the fixed part or the shape, by its offset."""
    yield _made("header-magic", _plain((0, b"\x92")))
    yield _made("header-version-0", _plain((8, b"\0")), VERSION)
    yield _made("header-version-2", _plain((8, b"\2")), VERSION)
    yield _made("header-profile", _plain((9, b"\4")))
    yield _made("header-element-order-1", _plain((10, b"\1")), VERSION)
    yield _made("header-element-order-255", _plain((10, b"\xff")), VERSION)
    yield _made("header-ndim", _plain((11, b"\x41")), LIMIT)
    for bit in (*range(1, 9), 31):
        yield _made(f"header-required-feature-{bit}", _plain((12, _u32(1 << bit))), VERSION)
    yield _made("header-hash-algorithm-1", _plain((20, b"\1")), VERSION)
    yield _made("header-hash-algorithm-255", _plain((20, b"\xff")), VERSION)
    for log2 in (0, 4):
        yield _made(f"header-block-alignment-{log2}", _edited(_STORED_32, (21, bytes([log2]))))
    for log2 in (13, 31, 255):
        yield _made(f"header-block-alignment-{log2}", _plain((21, bytes([log2]))))
    for log2 in (0, 4, 22, 31, 255):
        yield _made(f"header-frame-alignment-{log2}", _plain((22, bytes([log2]))))
    yield _made("header-block-alignment-past-the-frame", _edited(_ALIGNED, (22, b"\5")))
    for reserved in (23, 29):
        yield _made(f"header-reserved-{reserved}", _plain((reserved, b"\1")))
    yield _made("header-bits-0", _plain((30, b"\0\0")))
    yield _made("header-bits-1025", _plain((30, b"\1\4")))
    yield _made("header-bits-24", _plain((30, b"\x18\0")))
    yield _made("header-bits-32", _plain((30, b"\x20\0")))
    yield _made("header-dtype-lowercase", _plain((32, b"bf16")))
    yield _made("header-dtype-empty", _plain((32, bytes(16))))
    yield _made("header-dtype-gap", _plain((32, b"BF16\0X")))
    yield _made("header-uncompressed-nbytes", _plain((48, _u64(601))))
    yield _made("header-uncompressed-nbytes-cap", _plain((48, _u64((1 << 53) + 1))), LIMIT)
    yield _made("header-block-words-0", _plain((72, bytes(4))))
    yield _made("header-block-words-128", _plain((72, b"\x80\0")))
    yield _made("header-block-words-257", _plain((72, b"\1\1")))
    yield _made("header-block-words-past-2-18", _plain((72, b"\0\1\4")))
    yield _made("header-content-hash", _plain((80, b"\0")))  # only for readers that compare it
    for at in (96, 111):
        yield _made(f"header-base-hash-{at}", _plain((at, b"\1")))
    yield _made("header-shape", _plain((128, _u64(301))))
    yield _made("header-shape-cap", _plain((128, _u64((1 << 52) + 1))), LIMIT)
    yield _made("header-shape-far-past-cap", _plain((128, _u64((1 << 64) - 1))), LIMIT)
    yield _made("header-num-blocks", _plain((48, _u64(1 << 21)), (128, _u64(1 << 20))))
    yield _made("header-num-blocks-cap", _plain(*_HUGE), LIMIT)
    yield _made("header-checksum-of-header", patch(_PLAIN, {120: _PLAIN[120] ^ 1}))
    other_index = _PLAIN[:112] + h128(b"")[:8] + bytes(8) + _PLAIN[128:136]
    yield _made("header-checksum-of-index", other_index[:120] + h128(other_index)[:8] + _PLAIN[128:])


def _sizes() -> Iterator[Malformed]:
    """header_nbytes, data_nbytes and padding_nbytes. Where it can be done, all bytes stand where these say."""
    not_aligned = (56, _u64(168)), (76, b"\x18")
    yield _made("header-header-nbytes-not-aligned", _plain(*not_aligned, wider=8, behind=bytes(24)))
    yield _made("header-header-nbytes-0", _plain((56, _u64(0))))
    yield _made("header-header-nbytes-96", _plain((56, _u64(96))))
    # The shape is 0, and so is the padding that it stands in.
    in_padding = (56, _u64(128)), (76, b"\x20")
    yield _made("header-header-nbytes-without-room", _edited(_EMPTY, *in_padding, wider=-24, behind=bytes(24)))
    yield _made("header-header-nbytes-without-room-for-the-index", _index_in_the_blocks(), base=bf16())
    yield _made("header-header-nbytes-cap", _plain((56, _u64((1 << 37) + 32))), LIMIT)
    yield _made("header-header-nbytes-past-cap-not-aligned", _plain((56, _u64((1 << 37) + 1))), LIMIT)
    yield _made("header-header-nbytes-at-cap", _plain((56, _u64(1 << 37))), TRUNCATED)
    # A reader that rounds down to units would find the blocks where they are.
    between_units = (64, _u64(_DATA + 8)), (76, b"\x18")
    yield _made("header-data-nbytes-not-units", _plain(*between_units, behind=bytes(32)))
    yield _made("header-data-nbytes-cap", _plain((64, _u64(1 << 36))), LIMIT)
    yield _made("header-data-nbytes-past-cap-not-units", _plain((64, _u64((1 << 36) + 1))), LIMIT)
    yield _made("header-padding-not-aligned", _plain((76, b"\x08"), behind=bytes(8)))
    yield _made("header-padding-cap", _plain((76, _u32((1 << 22) + 32))))
    yield _made("header-padding-cut", _plain((76, b"\x20")), TRUNCATED)
    # A coded block of 128 bytes for words that have 96 when stored.
    too_long = one_block(bf16(48), instead(bf16(48), bytes(2), 5, 1))
    yield _made("header-block-too-long", too_long)
    yield _made("header-data-without-blocks", _edited(_EMPTY, (64, _u64(32)), behind=bytes(32)))
    yield _made("pair-block-too-long-and-cut", too_long[:-1])
    yield _made("frame-followed", _PLAIN + bytes(32))
    yield _made("frame-cut", _PLAIN[:-1], TRUNCATED)
    yield _made("frame-cut-in-the-shape", _PLAIN[:132], TRUNCATED)
    yield _made("frame-empty", b"", TRUNCATED)
    yield _made("frame-of-something-else", b"{}")
    yield _made("frame-of-version-0", _VERSION_0, VERSION)


def _index_in_the_blocks() -> bytes:
    """The last entry, of a block that is same, is also the first 8 bytes of the first block, which is stored."""
    content = struct.pack("<II", 8, 0) + bf16()[8:]
    frame = encode(content, "U8", (600, 1), block_words=256, kind=[Stored(), Same(), Same()], base=bf16())
    assert frame[160:192] == content[:8] + bytes(24)
    return _edited(frame, (56, _u64(160)), wider=-32)


def _layouts() -> Iterator[Malformed]:
    """Layouts that contradict themselves, or the bits per element; by the layout's five bytes, which begin at 24."""
    words = {1: bytes(range(64)), 2: bf16(64), 4: bf16(64), 8: bf16(64)}
    table: list[tuple[str, str, tuple[int, int, int, int, int]]] = [
        ("layout-word-nbytes-0", "BF16", (0, 8, 8, 1, 1)),
        ("layout-word-nbytes-255", "BF16", (255, 8, 8, 1, 1)),
        *((f"layout-exponent-bits-{e}", "F32", (4, e, 32 - e, 1, 1)) for e in (9, 16, 31)),
        ("layout-exponent-bits-0-of-a-float", "BF16", (2, 0, 8, 1, 1)),
        ("layout-exponent-bits-0-with-a-split", "BF16", (2, 0, 0, 1, 1)),
        ("layout-exponent-bits-0-with-a-rest", "BF16", (2, 0, 16, 0, 1)),
        ("layout-exponent-bits-32", "F32", (4, 32, 0, 2, 0)),
        ("layout-exponent-bits-255", "BF16", (2, 255, 17, 2, 0)),
        ("layout-exponent-bits-without-split", "BF16", (2, 8, 8, 0, 1)),
        *((f"layout-rest-bits-{r}", "BF16", (2, 8, r, 1, 1)) for r in (0, 7, 9, 24, 255)),
        *((f"layout-split-{split}", "BF16", (2, 8, 8, split, 1)) for split in (4, 255)),
        ("layout-float-without-a-rest", "F8_E8M0", (1, 8, 0, 1, 0)),
        *((f"layout-ordered-{ordered}", "BF16", (2, 8, 8, 1, ordered)) for ordered in (2, 255)),
        ("layout-words-past-the-element", "BF16", (4, 8, 24, 1, 1)),
        ("layout-words-that-split-the-element", "I16", (8, 0, 0, 0, 0)),
    ]
    for name, dtype, layout in table:
        data = words[TABLE[dtype][1].word_nbytes]
        frame = encode(data, dtype, (len(data) * 8 // TABLE[dtype][0],), kind=Stored())
        yield _made(name, _edited(frame, (24, bytes(layout))))
    # One element of so many bytes is one word.
    by_byte = Layout(1, 0, 0, "none", False)
    for word_nbytes in (3, 16):
        frame = encode(bf16()[:word_nbytes], "X", (1,), bits=8 * word_nbytes, layout=by_byte, kind=Stored())
        yield _made(f"layout-word-nbytes-{word_nbytes}", _edited(frame, (24, bytes([word_nbytes]))))


def _index() -> Iterator[Malformed]:
    yield _made("index-first-start", _with_gap(_PLAIN, 2))
    yield _made("index-equal-starts", _plain((144, b"\0")))
    yield _made("index-start-at-end", _plain((144, b"\xff")))
    yield _made("index-block-checksum", _plain((140, b"\0\0")))
    yield _made("index-padding", _plain((159, b"\1")))
    yield _made("index-stored-bit-of-a-short-block", _plain((139, b"\x80")))
    # A decoder that infers from its size that a block is stored would decode these.
    noise = bytes(range(7, 70)) + b"\1"  # as a coded block it is constant, and longer than one
    stored = encode(noise, "U8", (64,), kind=Stored())
    yield _made("index-stored-block-without-the-bit", _edited(stored, (139, b"\0")))
    coded = encode(b"\x80\x3f" * 5, "BF16", (5,), kind=Constant())
    yield _made("index-coded-block-of-raw-bytes-with-the-bit", _edited(coded, (139, b"\x80")))


def _extensions() -> Iterator[Malformed]:
    records = _EXTENDED[152:192].hex(" ", 4)
    assert records == "01000000 04000000 07000000 00000000 09000000 03000000 61626300" + 3 * " 00000000"
    table: list[tuple[str, int, bytes]] = [
        ("extension-repeated", 168, b"\x01"),
        ("extension-descending", 152, b"\x0a"),
        ("extension-length-past-the-header", 172, b"\x11"),
        ("extension-length-2-32-less-1", 172, b"\xff\xff\xff\xff"),
        ("extension-length-of-the-last-past-the-header", 184, b"\x0a\0\0\0\x01"),
        ("extension-encoder-of-3-bytes", 156, b"\x03"),
        ("extension-encoder-of-5-bytes", 156, b"\x05"),
        ("extension-encoder-of-8-bytes", 156, b"\x08"),
        ("extension-padding", 164, b"\x01"),
        ("extension-padding-at-the-end", 183, b"\x80"),
        ("extension-content-in-the-padding", 179, b"d"),
        ("extension-end-with-a-length", 188, b"\x01"),
        ("extension-bytes-behind-the-end", 152, b"\0\0\0\0"),
    ]
    for name, offset, value in table:
        yield _made(name, _edited(_EXTENDED, (offset, value)))
    same = encode(_BASE, "BF16", (600,), base=_BASE, extensions={7: b"12345678"})
    yield _made("extension-of-same-length-past-the-header", _edited(same, (140, b"\x21")), base=_BASE)
    yield _made("extension-of-same-bytes-behind-the-end", _edited(same, (159, b"\1")), base=_BASE)


def _padding() -> Iterator[Malformed]:
    frame = encode(bf16(), "BF16", (300,), frame_alignment=512, padding_nbytes=600)
    yield _made("padding-first-byte", patch(frame, {-600: 1}))
    yield _made("padding-last-byte", patch(frame, {-1: 1}))
    yield _made("padding-cut", frame[:-1], TRUNCATED)
    yield _made("padding-followed", frame + bytes(32))
    yield _made("pair-padding-set-and-cut", patch(frame, {-600: 1})[:-1], TRUNCATED)
    relative = encode(bf16(), "BF16", (300,), base=bf16(), padding_nbytes=32)
    yield _made("padding-of-same", patch(relative, {-1: 1}), base=bf16())
    yield _made("pair-padding-and-base", patch(relative, {-1: 1}))
    # Aligned to 64 bytes: a multiple of 32 is not enough for the blocks, the header, nor the frame.
    between_units = (64, _u64(_ALIGNED_DATA + 32)), (76, b"\x20")
    yield _made("aligned-data-nbytes", _edited(_ALIGNED, *between_units, behind=bytes(64)))
    shorter = (56, _u64(160)), (76, b"\x20")
    yield _made("aligned-header-nbytes", _edited(_ALIGNED, *shorter, wider=-32, behind=bytes(32)))
    yield _made("aligned-padding", _edited(_ALIGNED, (76, b"\x20"), behind=bytes(32)))


def _pairs() -> Iterator[Malformed]:
    """Two rules broken at once: the page's order of checks says which error it is."""
    version, feature, profile = (8, b"\x02"), (12, b"\x04"), (9, b"\x04")
    order, ndim, algorithm, alignment = (10, b"\x01"), (11, b"\x41"), (20, b"\x01"), (21, b"\x1f")
    bits, nbytes, header = (30, b"\0\0"), (48, _u64((1 << 53) + 1)), (56, _u64((1 << 37) + 32))
    data, block_words, padding, shape = (64, _u64(1 << 36)), (72, bytes(4)), (76, b"\x08"), (128, _u64(1 << 62))
    no_room = (56, _u64(128))
    yield _made("pair-magic-version", _plain((0, b"\x92"), version))
    yield _made("pair-version-feature", _plain(version, feature), VERSION)
    yield _made("pair-version-profile", _plain(version, profile), VERSION)
    yield _made("pair-feature-profile", _plain(feature, profile), VERSION)
    yield _made("pair-profile-order", _plain(profile, order))
    yield _made("pair-order-ndim", _plain(order, ndim), VERSION)
    yield _made("pair-ndim-algorithm", _plain(ndim, algorithm), LIMIT)
    yield _made("pair-algorithm-alignment", _plain(algorithm, alignment), VERSION)
    yield _made("pair-alignment-nbytes", _plain(alignment, nbytes))
    yield _made("pair-layout-nbytes", _plain((25, b"\x20"), nbytes))
    yield _made("pair-bits-nbytes", _plain(bits, nbytes))
    yield _made("pair-dtype-header", _plain((32, b"bf16"), header))
    yield _made("pair-nbytes-header", _plain(nbytes, (56, _u64(168))), LIMIT)
    yield _made("pair-header-data", _plain((56, _u64(168)), data))
    yield _made("pair-room-data", _plain((56, _u64(96)), data), LIMIT)
    yield _made("pair-data-block-words", _plain(data, block_words), LIMIT)
    yield _made("pair-block-words-shape", _plain(block_words, shape))
    yield _made("pair-padding-shape", _plain(padding, shape))
    yield _made("pair-base-hash-shape", _plain((96, b"\x01"), shape))
    yield _made("pair-shape-nbytes", _plain(shape, (48, _u64(1))), LIMIT)
    yield _made("pair-nbytes-num-blocks", _plain(_HUGE[1], (48, _u64(600))))
    yield _made("pair-num-blocks-room", _plain(*_HUGE, no_room), LIMIT)
    yield _made("pair-room-cut-in-the-shape", _plain(no_room)[:132], TRUNCATED)
    yield _made("pair-shape-checksum", patch(_PLAIN, {120: 1, 135: 0x40}), LIMIT)
    yield _made("pair-header-checksum-cut", patch(_PLAIN, {120: _PLAIN[120] ^ 1})[:140])
    yield _made("pair-index-cut", _with_gap(_PLAIN, 2)[:-1])
    yield _made("pair-cut-and-base", _RELATIVE[:-1], TRUNCATED)
    yield _made("pair-followed-and-base", _RELATIVE + bytes(32))
    yield _made("pair-same-with-checksum-and-base", _edited(_RELATIVE, (148, b"\1")))


def _relative() -> Iterator[Malformed]:
    table: list[tuple[str, int, bytes, str]] = [
        ("relative-resident", 9, b"\x03", CORRUPT),
        ("relative-base-hash", 96, b"\x00", MISMATCH),
        ("relative-start-at-end", 144, b"\xff", CORRUPT),
        ("relative-start-behind-the-next", 144, b"\x02", CORRUPT),
        ("relative-same-with-checksum", 148, b"\x01", CORRUPT),
        ("relative-same-that-is-stored", 147, b"\x80", CORRUPT),
        ("relative-checksum-of-block", 140, b"\x00\x00", CORRUPT),
    ]
    for name, offset, value, error in table:
        yield _made(name, _edited(_RELATIVE, (offset, value)), error, _BASE)
    yield _made("relative-first-start", _with_gap(_RELATIVE, 3), base=_BASE)
    # Blocks that profile resident would have, if its frames could be relative.
    four, other = b"\1\2\3\4", b"\4\3\2\1"
    for name, content in (("relative-resident-of-same", four), ("relative-resident-of-stored", other)):
        frame = encode(content, "F32", (), profile="resident", kind=None if content == four else Stored(), base=four)
        yield _made(name, frame, base=four)
    yield _made("relative-num-blocks-cap", _edited(_RELATIVE, *_HUGE), LIMIT, _BASE)
    yield _made("relative-without-base", _RELATIVE, MISMATCH)
    yield _made("relative-other-base", _RELATIVE, MISMATCH, patch(_BASE, {7: 1}))
    yield _made("relative-shorter-base", _RELATIVE, MISMATCH, _BASE[:-2])
    yield _made("relative-longer-base", _RELATIVE, MISMATCH, _BASE + b"\0\0")
    yield _made("relative-base-is-the-content", _RELATIVE, MISMATCH, _CONTENT)
    another = (80, b"\0\0")
    yield _made("relative-same-of-another", _edited(_SAME, another), base=_BASE)
    yield _made("relative-same-of-another-without-base", _edited(_SAME, another))
    yield _made("relative-empty-of-another", _edited(_EMPTY_RELATIVE, another), base=b"")
    yield _made("relative-empty-of-another-without-base", _edited(_EMPTY_RELATIVE, another))
    yield _made("relative-same-with-data", _edited(_SAME, (64, _u64(32)), behind=bytes(32)), base=_BASE)
    with_data = _edited(_EMPTY_RELATIVE, (64, _u64(32)), behind=bytes(32))
    yield _made("relative-data-without-blocks", with_data, base=b"")
    for numel in (300, 1 << 40):
        yield _made(f"relative-same-of-{numel}-words", _same_of_another_size(numel), MISMATCH, _BASE)


def _same_of_another_size(numel: int) -> bytes:
    """The hash of the base is right, but the frame claims another size."""
    found = content_hash(_BASE)
    return pack_frame(Header("fast", "BF16", *TABLE["BF16"], 256, (numel,), found, found), [])


MALFORMED_HEADERS = (
    *_fields(),
    *_sizes(),
    *_layouts(),
    *_index(),
    *_extensions(),
    *_padding(),
    *_pairs(),
    *_relative(),
)
