"""Frames that break one rule of the format page each, with all checksums right, and the error that the page names.

Wherever it can be done, a decoder that overlooks the rule would return the right content: no other check catches them.
"""

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from reference.tensorwire_reference import (
    Bytes,
    Cascade,
    Constant,
    Enec,
    Entropy,
    Kind,
    Plain,
    Rest,
    Stored,
    Trimmed,
    Verbatim,
    ZeroGroups,
    encode,
)
from reference.tensorwire_reference.cascade import TIER_WIDTHS
from reference.tensorwire_reference.encoder import encode_block, pack_block, pack_frame
from reference.tensorwire_reference.hashes import content_hash
from reference.tensorwire_reference.header import Header, dtype_of, seal_header
from reference.tensorwire_reference.planes import field_nbytes, pack_plane
from reference.tensorwire_reference.rans import write_symbols
from reference.tensorwire_reference.words import to_words

CORRUPT, TRUNCATED = "CorruptDataError", "TruncatedDataError"
VERSION, LIMIT = "UnsupportedVersionError", "LimitExceededError"

Edit = Callable[[bytes], bytes]


class Malformed(NamedTuple):
    """One frame. `error` is the name that the page uses."""

    name: str
    build: Callable[[], bytes]
    error: str


def patch(data: bytes, changes: dict[int, int]) -> bytes:
    """`data` with bytes replaced; negative offsets count from the end."""
    out = bytearray(data)
    for offset, value in changes.items():
        out[offset] = value
    return bytes(out)


def bf16(n: int = 300) -> bytes:
    """Words with exponents 120 to 127, a zero lowest bit and positive sign."""
    i = np.arange(n)
    exponents = 127 - np.minimum(i * i % 19, 7) // 2
    return (exponents << 7 | i * 37 % 64 << 1).astype("<u2").tobytes()


def _base_frame() -> bytes:
    """A frame of two coded blocks and 32 bytes of padding at its end."""
    frame = encode(bf16(), "BF16", (3, 100), profile="compact", block_log2=8, kind=Cascade(variant=1))
    assert frame[-32:] == bytes(32)
    return frame


def _header_edit(offset: int, value: bytes) -> bytes:
    frame = _base_frame()
    header_nbytes = 192
    frame = frame[:offset] + value + frame[offset + len(value) :]
    return seal_header(frame[:header_nbytes]) + frame[header_nbytes:]


def _headers() -> Iterator[Malformed]:
    u64 = partial(struct.pack, "<Q")
    numel = 300
    table: list[tuple[str, int, bytes, str]] = [
        ("magic", 0, b"\x92", CORRUPT),
        ("version", 8, b"\x01", VERSION),
        ("profile", 9, b"\x03", CORRUPT),
        ("element-order", 10, b"\x01", CORRUPT),
        ("ndim", 11, b"\x41", LIMIT),
        ("required-features-low", 12, b"\x01", VERSION),
        ("required-features-high", 15, b"\x80", VERSION),
        ("dtype-lowercase", 16, b"bf16", CORRUPT),
        ("dtype-empty", 16, bytes(16), CORRUPT),
        ("dtype-gap", 16, b"BF16\0X", CORRUPT),
        ("bits-0", 32, b"\x00\x00", CORRUPT),
        ("bits-1025", 32, b"\x01\x04", CORRUPT),
        ("bits-of-another-dtype", 32, b"\x20\x00", CORRUPT),
        ("block-log2-7", 34, b"\x07", CORRUPT),
        ("block-log2-19", 34, b"\x13", CORRUPT),
        *((f"reserved-{i}", i, b"\x01", CORRUPT) for i in (*range(35, 40), *range(80, 120))),
        ("uncompressed-nbytes", 40, u64(2 * numel + 1), CORRUPT),
        ("uncompressed-nbytes-cap", 40, u64((1 << 62) + 1), LIMIT),
        ("data-nbytes-not-units", 48, b"\x01", CORRUPT),
        ("data-nbytes-cap", 48, u64((1 << 37) + 32), LIMIT),
        ("num-blocks", 56, u64(1), CORRUPT),
        ("num-blocks-at-cap", 56, u64(1 << 32), CORRUPT),
        ("num-blocks-cap", 56, u64((1 << 32) + 1), LIMIT),
        ("num-blocks-huge", 56, u64((1 << 64) - 1), LIMIT),
        ("content-hash", 64, b"\x00", CORRUPT),  # only for readers that compare it
        ("shape", 128, u64(4), CORRUPT),
        ("shape-cap", 128, u64(1 << 60) + u64(1 << 60), LIMIT),
        ("index-first-offset", 144, b"\x01", CORRUPT),
        ("index-equal-offsets", 152, b"\x00", CORRUPT),
        ("index-offset-at-end", 152, b"\xff", CORRUPT),
        ("index-block-checksum", 148, b"\x00\x00", CORRUPT),
        ("index-padding", 168, b"\x01", CORRUPT),
    ]
    for name, offset, value, error in table:
        yield Malformed(f"header-{name}", partial(_header_edit, offset, value), error)
    yield Malformed("header-checksum", lambda: patch(_base_frame(), {120: _base_frame()[120] ^ 1}), CORRUPT)
    yield Malformed("frame-padding", lambda: patch(_base_frame(), {-1: 1}), CORRUPT)
    yield Malformed("frame-followed", lambda: _base_frame() + bytes(64), CORRUPT)
    yield Malformed("frame-cut-padding", lambda: _base_frame()[:-1], TRUNCATED)
    yield Malformed("frame-empty", lambda: b"", TRUNCATED)
    yield Malformed("frame-of-something-else", lambda: b"{}", CORRUPT)
    no_words = encode(b"", "BF16", (0,))
    more = no_words[:48] + struct.pack("<Q", 32) + no_words[56:]
    yield Malformed("header-data-without-blocks", lambda: seal_header(more[:192]) + bytes(64), CORRUPT)


def one_block(
    data: bytes,
    edit: Edit,
    *,
    dtype: str = "BF16",
    profile: str = "compact",
    kind: Kind | None = None,
    rest: Rest | None = None,
) -> bytes:
    """A frame of content `data` whose only block is `edit(block)`, `block` being made as requested."""
    row = dtype_of(dtype)
    words = to_words(data, row)
    block = edit(encode_block(words, row, profile, kind or Stored(), rest or Verbatim()))
    return pack_frame(Header(profile, row, 10, (len(words),), 0, content_hash(data)), [block])


def make(name: str, edit: Edit, data: bytes, **options: Any) -> Malformed:
    return Malformed(f"block-{name}", partial(one_block, data, edit, **options), CORRUPT)


def _same(block: bytes) -> bytes:
    return block


def _replace(changes: dict[int, int]) -> Edit:
    return lambda block: patch(block, changes)


def _retag(mask: int) -> Edit:
    return lambda block: patch(block, {-1: block[-1] ^ mask})


def _insert_unit(tail: int) -> Edit:
    """One unit of padding too much, before a descriptor of `tail` bytes."""
    return lambda block: block[:-tail] + bytes(32) + block[-tail:]


def _instead(streams: bytes, params: bytes, kind: int, rest: int = 0, variant: int = 0) -> Edit:
    """A block made by hand, in place of the encoder's."""
    return lambda _: pack_block(streams, params, kind, rest, variant)


def _tags() -> Iterator[Malformed]:
    cascade: dict[str, Any] = {"kind": Cascade(variant=1, lo=124, below=(1, 2, 0))}
    plain: dict[str, Any] = {"kind": Plain(), "rest": Trimmed()}
    words, same = bf16(), b"\x80\x3f" * 300
    yield make("stored-padding", _replace({-1: 1}), words)
    yield make("stored-too-long", lambda block: block + bytes(32), words)
    yield make("padding-set", _replace({-15: 1}), words, **cascade)
    yield make("padding-of-a-unit", _insert_unit(14), words, **cascade)
    yield make("streams-too-short", lambda block: block[32:], words, **cascade)
    yield make("kind-0", _retag(3), words, **cascade)
    yield make("kind-7", _retag(4), words, **cascade)
    yield make("rest-3", _retag(3 << 3), words, **cascade)
    yield make("plain-rest-0", _retag(1 << 3), words, **plain)
    yield make("plain-variant", _retag(1 << 5), words, **plain)
    yield make("constant-rest", _retag(1 << 3), same, kind=Constant())
    yield make("constant-variant", _retag(1 << 5), same, kind=Constant())
    yield make("constant-two-units", _insert_unit(3), same, kind=Constant())
    yield make("constant-padding", _replace({0: 1}), same, kind=Constant())
    yield make("cascade-in-enec", _same, words, profile="enec", **cascade)
    for profile in ("enec", "fast"):
        yield make(f"entropy-in-{profile}", _same, bf16(600), profile=profile, kind=Entropy())
        yield make(f"bytes-in-{profile}", _same, words, profile=profile, kind=Enec(), rest=Bytes())
    integers = (np.arange(400) % 7).astype("<u4").tobytes()
    yield make("float-kind-of-integers", _retag(5 ^ 3), integers, dtype="I32", **plain)


def _rests() -> Iterator[Malformed]:
    zeros = bytes(600)
    yield make("trimmed-17-bits-of-16", _replace({-3: 7, -2: 10}), zeros, kind=Plain(), rest=Trimmed())
    yield make("trimmed-run-17-bits-of-16", _instead(bytes([17, 16]), bytes([0, 255]), 5, 1), zeros)
    yield make("bytes-mode-3", _instead(bytes(2), bytes([1, 3]), 5, 2), zeros)
    # BF16 with k = 3 leaves one slice of 5 bits; the value has 6.
    yield make("bytes-value-too-wide", _instead(b"\x20" + rans_zeros(300), b"\1" + bytes(4), 4, 2, 3), zeros)


def _enec() -> Iterator[Malformed]:
    enec: dict[str, Any] = {"kind": Enec(group=16, b=127, m=2, nb=4)}
    yield make("enec-m-0", _replace({-4: 0x04}), bf16(), **enec)
    yield make("enec-m-is-nb", _replace({-4: 0x44}), bf16(), **enec)
    yield make("enec-num-high", lambda block: patch(block, {-3: block[-3] ^ 1}), bf16(), **enec)
    for name, group_log2, m_nb in (("L-2", 1, 0x12), ("L-64", 6, 0x12), ("nb-9-of-8", 4, 0x19)):
        streams = bytes(field_nbytes(300, 8) + field_nbytes(300, 1) + field_nbytes(-(-300 >> group_log2), 1))
        yield make(f"enec-{name}", _instead(streams, bytes([0, m_nb, 0, 0]), 2, 0, group_log2), bytes(600))


def _cascade() -> Iterator[Malformed]:
    # All words are in tier 1; or one is an escape of all tiers.
    no_escape = (np.full(300, 100) << 7).astype("<u2").tobytes()
    one_escape = (np.where(np.arange(300) == 150, 200, 100) << 7).astype("<u2").tobytes()
    for variant, widths in enumerate(TIER_WIDTHS):
        kind = Cascade(variant=variant, lo=100, below=(0,) * (len(widths) - 1))
        for bit in range(12, 16):
            yield make(f"cascade-{variant}-bit-{bit}", _replace({-12: 1 << bit - 8}), one_escape, kind=kind)
        for tier in range(2, 6):
            c = (1 << widths[tier - 1]) - 1 if tier <= len(widths) else 0
            if c < 7:
                low, high = ((c + 1) << 3 * (tier - 2)).to_bytes(2, "little")
                name = f"cascade-{variant}-a{tier}-above-{c}"
                yield make(name, _replace({-13: low, -12: high}), no_escape, kind=kind)
        for tier in range(len(widths) + 2, 7):
            edit = _replace({2 * tier - 15: 1})
            yield make(f"cascade-{variant}-n{tier}-of-nothing", edit, one_escape, kind=kind)
    # Counts 14, 12, 10, 6, 4. One more takes no more room, or a byte of the padding.
    exponents = np.repeat([103, 104, 105, 108, 200, 100], [2, 2, 4, 2, 4, 286])
    words, kind = (exponents << 7).astype("<u2").tobytes(), Cascade(variant=3, lo=100, below=(0, 0, 0, 0))
    for tier, count in enumerate((14, 12, 10, 6, 4), 2):
        yield make(f"cascade-n{tier}", _replace({2 * tier - 15: count + 1}), words, kind=kind)
    # An escaped exponent 7 + 16 of F8_E4M3: the right word if the highest bit were dropped.
    streams = bytes(field_nbytes(500, 4)) + mask(500, 1) + bytes([7 + 16])
    edit = _instead(streams, struct.pack("<B6H", 7, 0, 1, 0, 0, 0, 0), 3, 0, 7)
    yield make("cascade-exponent-too-large", edit, b"\x38" * 500, dtype="F8_E4M3")


def _cascade_intervals() -> Iterator[Malformed]:
    """Tiers that name one exponent below 0 or one of 2^E, which occurs nowhere: all words are digit 0 of tier 1."""
    n = 500
    for dtype, exponent_bits, mantissa_bits in (("BF16", 8, 7), ("F16", 5, 10), ("F8_E4M3", 4, 3)):
        end = 1 << exponent_bits
        for name, lo, a2, a3, a4, a5 in (
            ("tier-1-above", end - 2, 1, 1, 3, 7),
            ("tier-2-above", end - 3, 0, 1, 3, 7),
            ("tier-3-above", end - 3, 1, 0, 3, 7),
            ("tier-4-above", end - 3, 1, 1, 2, 7),
            ("tier-5-above", end - 3, 1, 1, 3, 6),
            ("tier-2-below", 0, 1, 0, 0, 0),
            ("tier-3-below", 1, 1, 1, 0, 0),
            ("tier-4-below", 4, 1, 1, 3, 0),
            ("tier-5-below", 5, 1, 1, 3, 1),
        ):
            streams = bytes(field_nbytes(n, mantissa_bits + 1) + field_nbytes(n, 2))
            params = struct.pack("<BH10x", lo, a2 | a3 << 3 | a4 << 6 | a5 << 9)
            edit = _instead(streams, params, 3, 0, 3)
            word = (lo << mantissa_bits).to_bytes(1 if exponent_bits == 4 else 2, "little")
            yield make(f"cascade-{name}-{dtype}", edit, n * word, dtype=dtype)


def _filler() -> Iterator[Malformed]:
    """A bit of no number set: the highest one of a plane's last byte. Blocks of 301 words, most of them equal."""
    n = 301  # the short run has such bits whether numbers have 4, 2 or 1
    four, two, one = (bytes(field_nbytes(n, p)) for p in (4, 2, 1))
    bf16_word, f16_word = b"\x00\x32", b"\x00\x3c"  # exponents 100 and 15
    # Seven words are escapes of tier 1, five of these of tier 2, then three, then two.
    tiers = (bytes(n), _digits(n, *[3] * 7), mask(7, 5), mask(5, 3), _digits(3, 3, 3), b"\0", b"\0")
    in_tiers = (np.repeat([108, 105, 104, 103, 100], [2, 1, 2, 2, n - 7]) << 7).astype("<u2").tobytes()
    tier_params = struct.pack("<B6H", 100, 0, 7, 5, 3, 2, 0)
    names_of_tiers = ("", "tier-1", "tier-2", "tier-3", "tier-4", "tier-5-low", "tier-5-high")
    # The last word, alone in its group of four, has y = 4: exponent 96.
    enec = (bytes(n), two, bytes(5) + b"\x80" + bytes(4), b"\1")
    in_enec = bf16_word * (n - 1) + b"\x00\x30"
    # A rest of two constant slices; all words are escapes, in fields of 5 bits.
    escapes = (bytes(2), write_symbols(np.full(n, 255, np.uint64)), b"\xff" * 150 + b"\x0f", one)
    entropy_params = struct.pack("<2B2H", 1, 1, 0, n)
    one_tier = bytes([15, *bytes(12)])
    table: list[tuple[tuple[str, ...], tuple[bytes, ...], bytes, tuple[int, int, int], bytes, str]] = [
        (("rest-4",), (four, one), bytes([7, *bytes(12)]), (3, 0, 7), b"\x38" * n, "F8_E4M3"),
        (("", "rest-2", "rest-1"), (bytes(n), two, one, one), one_tier, (3, 0, 7), f16_word * n, "F16"),
        (("", "slice-2", "slice-1"), (bytes(n), two, one, one), bytes(2) + one_tier, (3, 2, 7), f16_word * n, "F16"),
        (("trimmed-2", "trimmed-1"), (two, one), bytes([13, 0]), (5, 1, 0), bytes(2 * n), "BF16"),
        (
            ("", "", "trimmed-run-2", "trimmed-run-1"),
            (b"\0\1", bytes(128), bytes(field_nbytes(45, 2)), bytes(field_nbytes(45, 1))),
            bytes([12, 255]),
            (5, 1, 0),
            bytes(2 * n),
            "BF16",
        ),
        (names_of_tiers, tiers, tier_params, (3, 0, 3), in_tiers, "BF16"),
        (("", "", "escapes-4", "escapes-1"), escapes, entropy_params, (4, 2, 0), f16_word * n, "F16"),
        (("", "low", "mask", "high"), enec, bytes([100, 2 << 4 | 4, 1, 0]), (2, 0, 2), in_enec, "BF16"),
    ]
    for names, streams, params, tag, data, dtype in table:
        for i, name in enumerate(names):
            if name:
                head, tail = b"".join(streams[: i + 1]), b"".join(streams[i + 1 :])
                edit = _instead(patch(head, {-1: head[-1] | 0x80}) + tail, params, *tag)
                yield make(f"filler-{name}", edit, data, dtype=dtype)


def _entropy() -> Iterator[Malformed]:
    yield make("entropy-num-escapes", _replace({-3: 1}), bf16(600), kind=Entropy())
    yield make("entropy-base-2", _same, bf16(600), kind=Entropy(base=2))
    halves = (np.arange(700) % 5 + 3 << 10).astype("<u2").tobytes()
    yield make("entropy-base-of-few-bits", _same, halves, dtype="F16", kind=Entropy(base=1))
    yield make("entropy-k-above-M", _instead(rans_zeros(500), bytes(4), 4, 0, 3), bytes(500), dtype="F8_E5M2")
    # Exponent 7 + 16 of F8_E4M3, as above.
    too_wide = bytes(field_nbytes(500, 4)) + rans_zeros(500, table=bytes([23, 24, 23, 0b100]))
    yield make("entropy-x-too-large", _instead(too_wide, bytes(4), 4), b"\x38" * 500, dtype="F8_E4M3")
    stream = field_nbytes(600, 8)  # where the entropy stream begins, behind the verbatim rest
    yield make("rans-implied-outside", _replace({stream + 6: 200}), bf16(600), kind=Entropy())
    yield make("rans-num-words", _replace({stream + 1: 255}), bf16(600), kind=Entropy())

    sum_8191 = bytes([0, 2, 0]) + bit_string("0" * 24 + "1" + "111" + "1" + "111")
    streams = {
        "state-too-small": rans_zeros(500, first_state=1),
        "last-state": rans_zeros(500, last_state=(1 << 16) + 1),
        "word-left": rans_zeros(500, num_words=1),
        "table-bits": rans_zeros(500, table=bytes([0, 1, 0]) + bit_string("001" + "1")),
        "implied-4096": rans_zeros(500, table=bytes([0, 0, 0]), frequency=4096),
        "implied-negative": rans_zeros(500, table=sum_8191),
        "unary-too-long": rans_zeros(500, table=bytes([0, 1, 0]) + bit_string("0" * 25 + "1")),
        "bit-length-negative": rans_zeros(500, table=bytes([0, 1, 0]) + bit_string("01")),
        "bit-length-13": rans_zeros(500, table=bytes([0, 2, 0]) + bit_string("0" * 24 + "1" + "000" + "001")),
        "table-cut": rans_zeros(500)[:7],
    }
    for name, content in streams.items():
        yield make(f"rans-{name}", _instead(content, b"\2", 5, 2), bytes(500), dtype="U8")


def _zero_groups() -> Iterator[Malformed]:
    words = bf16(40)
    data = words + bytes(1000)  # 540 words: 68 groups of 8, of which the first 5 are not zero
    groups: dict[str, Any] = {"kind": ZeroGroups(inner=Stored(), group=8)}
    yield make("zero-groups-in-enec", _same, data, profile="enec", **groups)
    of_entropy = ZeroGroups(inner=Entropy(), group=8)
    yield make("zero-groups-of-entropy-in-fast", _same, bf16(600) + bytes(1000), profile="fast", kind=of_entropy)
    yield make("zero-groups-rest", _retag(1 << 3), data, **groups)
    yield make("zero-groups-num-words-0", _replace({-7: 0}), data, **groups)
    yield make("zero-groups-num-words-41", _replace({-7: 41}), data, **groups)
    yield make("zero-groups-inner-units-0", _replace({-3: 0}), data, **groups)
    yield make("zero-groups-filler", _replace({96 + 8: 0x80}), data[: 2 * 516], **groups)
    too_long = words.ljust(128, b"\0") + mask(68, 5)  # 40 words are stored in 96 bytes
    yield make("zero-groups-inner-too-long", _instead(too_long, struct.pack("<IH", 40, 4), 6, 0, 3), data)
    inner = pack_block(words.ljust(96, b"\0") + mask(16, 5), struct.pack("<IH", 40, 3), 6, 0, 3)
    nested = struct.pack("<IH", 128, len(inner) // 32)
    yield make("zero-groups-nested", _instead(inner + mask(68, 16), nested, 6, 0, 3), data)


def _digits(n: int, *first: int) -> bytes:
    """A tier of `n` digits of 2 bits, zeros behind the first ones."""
    return pack_plane(np.array([*first, *bytes(n - len(first))], np.uint64), 2)


def mask(num_groups: int, present: int) -> bytes:
    """The mask of groups of which the first `present` are there."""
    return pack_plane((np.arange(num_groups) < present).astype(np.uint64), 1)


def bit_string(bits: str) -> bytes:
    """Bits in reading order, filled into bytes from the lowest."""
    return np.packbits([int(bit) for bit in bits], bitorder="little").tobytes()


def rans_zeros(
    n: int,
    *,
    table: bytes = bytes([0, 1, 0, 0b100]),
    frequency: int = 4095,
    first_state: int | None = None,
    last_state: int = 1 << 16,
    num_words: int = 0,
) -> bytes:
    """An entropy stream of `n` <= 5000 symbols 0, by hand: so few of this frequency need no words.

    The default table gives symbol 1 the frequency 1. first_state, last_state: of state 31.
    """
    states = [1 << 16] * 31 + [last_state]
    for i in range(n):
        x = states[i % 32]
        states[i % 32] = x // frequency * 4096 + x % frequency
    if first_state is not None:
        states[31] = first_state
    return struct.pack("<I", num_words) + table + struct.pack("<32I", *states) + bytes(2 * num_words)


MALFORMED = (
    *_headers(),
    *_tags(),
    *_rests(),
    *_enec(),
    *_cascade(),
    *_cascade_intervals(),
    *_entropy(),
    *_zero_groups(),
    *_filler(),
)
