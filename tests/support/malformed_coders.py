"""Malformed frames of the kinds enec, cascade and entropy, of the rests, and bits that belong to no number."""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference.tensorwire_reference import Cascade, Enec, Entropy, Plain, Trimmed
from reference.tensorwire_reference.cascade import widths_of
from reference.tensorwire_reference.planes import field_nbytes
from reference.tensorwire_reference.rans import write_symbols
from tests.support.malforming import (
    Malformed,
    bf16,
    bit_string,
    digits,
    instead,
    make,
    mask,
    patch,
    rans_zeros,
    replace,
    unchanged,
)


def _rests() -> Iterator[Malformed]:
    zeros = bytes(600)
    yield make("trimmed-17-bits-of-16", replace({-3: 7, -2: 10}), zeros, kind=Plain(), rest=Trimmed())
    yield make("trimmed-run-17-bits-of-16", instead(bytes([17, 16, 0, 0]), bytes([0, 255]), 5, 1), zeros)
    yield make("trimmed-run-padding", instead(bytes([16, 16, 0, 1]), bytes([0, 255]), 5, 1), zeros)
    yield make("bytes-mode-3", instead(bytes(8), bytes([1, 3]), 5, 2), zeros)
    yield make("bytes-constant-padding", instead(bytes(7) + b"\1", bytes([1, 1]), 5, 2), zeros)
    # BF16 with k = 3 leaves one slice of 5 bits; the value has 6.
    edit = instead(b"\x20\0\0\0" + rans_zeros(300), b"\1" + bytes(4), 4, 2, 3)
    yield make("bytes-value-too-wide", edit, zeros)


def _enec() -> Iterator[Malformed]:
    enec: dict[str, Any] = {"kind": Enec(group=16, b=127, m=2, nb=4)}
    yield make("enec-m-0", replace({-4: 0x04}), bf16(), **enec)
    yield make("enec-m-is-nb", replace({-4: 0x44}), bf16(), **enec)
    yield make("enec-num-high", lambda block: patch(block, {-3: block[-3] ^ 1}), bf16(), **enec)
    for name, group_log2, m_nb in (("L-2", 1, 0x12), ("L-64", 6, 0x12), ("nb-9-of-8", 4, 0x19)):
        streams = bytes(field_nbytes(300, 8) + field_nbytes(300, 1) + field_nbytes(-(-300 >> group_log2), 1))
        yield make(f"enec-{name}", instead(streams, bytes([0, m_nb, 0, 0]), 2, 0, group_log2), bytes(600))


def _cascade() -> Iterator[Malformed]:
    # All words are in tier 1; or one is an escape of all tiers.
    no_escape = (np.full(160, 100) << 7).astype("<u2").tobytes()
    one_escape = (np.where(np.arange(160) == 80, 200, 100) << 7).astype("<u2").tobytes()
    shapes = [(table, variant, widths) for table in (1, 2) for variant, widths in enumerate(widths_of(table))]
    for table, variant, widths in shapes:
        kind, end = Cascade(variant=variant, lo=100, below=(0,) * (len(widths) - 1), table=table), -table
        for tier in range(2, 6):
            c = (1 << widths[tier - 1]) - 1 if tier <= len(widths) else 0
            low, high = ((c + 1) << 4 * (tier - 2)).to_bytes(2, "little")
            name = f"cascade-{table}-{variant}-a{tier}-above-{c}"
            yield make(name, replace({end - 12: low, end - 11: high}), no_escape, kind=kind)
        for tier in range(len(widths) + 2, 7):
            edit = replace({end + 2 * tier - 14: 1})
            yield make(f"cascade-{table}-{variant}-n{tier}-of-nothing", edit, one_escape, kind=kind)
    for variant in range(6, 8):  # rows that the second table does not have
        edit = instead(bytes(2 * 300), bytes([0, *bytes(12)]), 7, 0, variant, 1)
        yield make(f"cascade-2-row-{variant}", edit, bytes(2 * 400))
    # Counts 14, 12, 10, 6, 4. One more takes no more room, or a byte of the padding.
    exponents = np.repeat([103, 104, 105, 108, 200, 100], [2, 2, 4, 2, 4, 286])
    words, kind = (exponents << 7).astype("<u2").tobytes(), Cascade(variant=3, lo=100, below=(0, 0, 0, 0))
    for tier, count in enumerate((14, 12, 10, 6, 4), 2):
        yield make(f"cascade-n{tier}", replace({2 * tier - 15: count + 1}), words, kind=kind)
    # An escaped exponent 7 + 16 of F8_E4M3: the right word if the highest bit were dropped.
    streams = bytes(field_nbytes(500, 4)) + mask(500, 1) + bytes([7 + 16, 0, 0, 0])
    edit = instead(streams, struct.pack("<B6H", 7, 0, 1, 0, 0, 0, 0), 3, 0, 7)
    yield make("cascade-exponent-too-large", edit, b"\x38" * 500, dtype="F8_E4M3")


def _cascade_intervals() -> Iterator[Malformed]:
    """Tiers that name one exponent below 0 or one of 2^E, which occurs nowhere: all words are digit 0 of tier 1."""
    n = 300
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
            params = struct.pack("<BH10x", lo, a2 | a3 << 4 | a4 << 8 | a5 << 12)
            edit = instead(streams, params, 3, 0, 3)
            word = (lo << mantissa_bits).to_bytes(1 if exponent_bits == 4 else 2, "little")
            yield make(f"cascade-{name}-{dtype}", edit, n * word, dtype=dtype)
    for dtype, row, lo in (("F8_E4M3", 0, 2), ("F8_E5M2", 0, 18), ("F8_E5M2", 1, 26)):  # one more than fit
        mantissa_bits = 3 if dtype == "F8_E4M3" else 2
        streams = bytes(field_nbytes(n, mantissa_bits + 1) + field_nbytes(n, 4 - row))
        edit = instead(streams, struct.pack("<B12x", lo), 7, 0, row, 1)
        if dtype == "F8_E4M3":  # 4 bits in place of 4: the rest has to shrink
            edit = instead(bytes(field_nbytes(n, 4)), struct.pack("<3B12x", 4, 0, lo), 7, 1, row, 1)
        yield make(f"cascade-2-{row}-above-{dtype}", edit, n * bytes([lo << mantissa_bits]), dtype=dtype)


def _filler() -> Iterator[Malformed]:
    """A bit of no number set, or a byte: the highest bit of a plane. Blocks of 301 words, most of them equal."""
    n = 301  # the short run has such bits whether numbers have 4, 2 or 1
    eight, four, two, one = (bytes(field_nbytes(n, p)) for p in (8, 4, 2, 1))
    bf16_word, f16_word = b"\x00\x32", b"\x00\x3c"  # exponents 100 and 15
    # Seven words are escapes of tier 1, five of these of tier 2, then three, then two.
    tiers = (eight, digits(n, *[3] * 7), mask(7, 5), mask(5, 3), digits(3, 3, 3), bytes(4), bytes(4))
    in_tiers = (np.repeat([108, 105, 104, 103, 100], [2, 1, 2, 2, n - 7]) << 7).astype("<u2").tobytes()
    tier_params = struct.pack("<B6H", 100, 0, 7, 5, 3, 2, 0)
    names_of_tiers = ("rest-8", "tier-1", "tier-2", "tier-3", "tier-4", "tier-5-low", "tier-5-high")
    # The last word, alone in its group of four, has y = 4: exponent 96.
    enec = (eight, two, _group_mask(), b"\1\0\0\0")
    in_enec = bf16_word * (n - 1) + b"\x00\x30"
    # A rest of two constant slices; all words are escapes, in fields of 5 bits.
    all_of_15 = _plane_of_ones(n, 4)
    escapes = (bytes(8), write_symbols(np.full(n, 255, np.uint64)), all_of_15, one)
    entropy_params = struct.pack("<2B2H", 1, 1, 0, n)
    one_tier = bytes([15, *bytes(12)])
    table: list[tuple[tuple[str, ...], tuple[bytes, ...], bytes, tuple[int, ...], bytes, str]] = [
        (("rest-4",), (four, one), bytes([7, *bytes(12)]), (3, 0, 7), b"\x38" * n, "F8_E4M3"),
        (("", "rest-2", "rest-1"), (eight, two, one, one), one_tier, (3, 0, 7), f16_word * n, "F16"),
        (("", "slice-2", "slice-1"), (eight, two, one, one), bytes(2) + one_tier, (3, 2, 7), f16_word * n, "F16"),
        (("trimmed-2", "trimmed-1"), (two, one), bytes([13, 0]), (5, 1, 0), bytes(2 * n), "BF16"),
        (
            ("", "", "trimmed-run-2", "trimmed-run-1"),
            (b"\0\1\0\0", bytes(128), bytes(field_nbytes(45, 2)), bytes(field_nbytes(45, 1))),
            bytes([12, 255]),
            (5, 1, 0),
            bytes(2 * n),
            "BF16",
        ),
        (names_of_tiers, tiers, tier_params, (3, 0, 3), in_tiers, "BF16"),
        (("", "four-bits"), (eight, four), bytes([100, *bytes(12)]), (7, 0, 0, 1), bf16_word * n, "BF16"),
        (
            ("", "three-low", "three-high"),
            (eight, two, one),
            bytes([100, *bytes(12)]),
            (7, 0, 1, 1),
            bf16_word * n,
            "BF16",
        ),
        (("", "", "escapes-4", "escapes-1"), escapes, entropy_params, (4, 2, 0), f16_word * n, "F16"),
        (("", "low", "mask", "high"), enec, bytes([100, 2 << 4 | 4, 1, 0]), (2, 0, 2), in_enec, "BF16"),
    ]
    for names, streams, params, tag, data, dtype in table:
        for i, name in enumerate(names):
            if name:
                head, tail = b"".join(streams[: i + 1]), b"".join(streams[i + 1 :])
                edit = instead(patch(head, {-1: head[-1] | 0x80}) + tail, params, *tag)
                yield make(f"filler-{name}", edit, data, dtype=dtype)


def _group_mask() -> bytes:
    """The mask of 76 groups of which the last one is set: 12 bytes, bit 6 of byte 3."""
    return patch(bytes(12), {75 % 12: 1 << 75 // 12})


def _plane_of_ones(n: int, p: int) -> bytes:
    """All numbers `2**p - 1`; `n` is 301, and p 4."""
    full, s = b"\xff" * 128, 4 * -(-(n - 256) * p // 32)
    return full + bytes(255 if i + s < n - 256 else 15 for i in range(s))


def _entropy() -> Iterator[Malformed]:
    yield make("entropy-num-escapes", replace({-3: 1}), bf16(600), kind=Entropy())
    yield make("entropy-lo-2", unchanged, bf16(600), kind=Entropy(lo=2))
    halves = (np.arange(700) % 5 + 3 << 10).astype("<u2").tobytes()
    yield make("entropy-lo-of-few-bits", unchanged, halves, dtype="F16", kind=Entropy(lo=1))
    yield make("entropy-k-3-of-R-3", instead(rans_zeros(500), bytes(4), 4, 0, 3), bytes(500), dtype="F8_E5M2")
    yield make("entropy-k-4", instead(rans_zeros(500), bytes(4), 4, 0, 4), bytes(500), dtype="U8")
    # Exponent 7 + 16 of F8_E4M3, as above.
    too_wide = bytes(field_nbytes(500, 4)) + rans_zeros(500, table=bytes([23, 24, 23, 0b100]))
    yield make("entropy-x-too-large", instead(too_wide, bytes(4), 4), b"\x38" * 500, dtype="F8_E4M3")
    stream = field_nbytes(600, 8)  # where the entropy stream begins, behind the verbatim rest
    yield make("rans-num-units", replace({stream + 1: 255}), bf16(600), kind=Entropy())

    sum_8191 = bytes([0, 2, 0]) + bit_string("0" * 24 + "1" + "111" + "1" + "111")
    streams = {
        "state-too-small": _begun_below(500),
        "last-state": rans_zeros(500, last_state=(1 << 16) + 1),
        "last-state-below": rans_zeros(500, last_state=(1 << 16) - 1),
        "unit-left": rans_zeros(500, num_units=1),
        "two-units-left": rans_zeros(500, num_units=2),
        "num-units-huge": patch(rans_zeros(500), {3: 0xFF}),
        "padding": rans_zeros(500, table=bytes([0, 9, 0]) + bit_string("001" + "01" + "1" * 7), padding=1),
        "table-bits": rans_zeros(500, table=bytes([0, 1, 0]) + bit_string("001" + "1")),
        "implied-4096": rans_zeros(500, table=bytes([0, 0, 0]), frequency=4096),
        "implied-outside": rans_zeros(500, table=bytes([0, 0, 1]) + bit_string("0" * 24 + "1" + "111"), frequency=3840),
        "implied-negative": rans_zeros(500, table=sum_8191),
        "unary-too-long": rans_zeros(500, table=bytes([0, 1, 0]) + bit_string("0" * 25 + "1")),
        "bit-length-negative": rans_zeros(500, table=bytes([0, 1, 0]) + bit_string("01")),
        "bit-length-13": rans_zeros(500, table=bytes([0, 2, 0]) + bit_string("0" * 24 + "1" + "000" + "001")),
        "table-cut": rans_zeros(500)[:7],
    }
    for name, content in streams.items():
        yield make(f"rans-{name}", instead(content, b"\2", 5, 2), bytes(500), dtype="U8")
    words = np.arange(901) % 2 * (np.arange(901) * 2654435761 % 2**32 >> 28)
    content = write_symbols(words.astype(np.uint64))
    assert content[0] % 2 == 1, "an odd number of units, and two bytes behind them"
    edit = instead(patch(content, {-1: 1}), b"\2", 5, 2)
    yield make("rans-padding-of-units", edit, words.astype("u1").tobytes(), dtype="U8")
    yield _without_its_unit()


def _begun_below(n: int) -> bytes:
    """Symbols 0. The first state 31 is 1, which stays 1 in the first step, and becomes the right state by a unit."""
    first_of_others = int.from_bytes(rans_zeros(n - 32)[8 + 31 * 4 :][:4], "little")
    assert first_of_others >> 16 == 1
    low, high = (first_of_others & 0xFFFF).to_bytes(2, "little")
    return patch(rans_zeros(n, first_state=1, num_units=1), {-4: low, -3: high})


def _without_its_unit() -> Malformed:
    """State 31 ends with two rare symbols, between which it reads a unit. That is 0, like the padding behind."""
    numbers = np.arange(500)
    rare = (numbers % 32 == 31) & (numbers >= 447)
    states = [1 << 16] * 32
    for i in reversed(range(500)):
        x = states[i % 32]
        if rare[i] and x >= 1 << 20:
            assert x % (1 << 16) == 0
            x >>= 16
        states[i % 32] = x << 12 if rare[i] else x // 4095 * 4096 + x % 4095 + 1
    one_of_4096 = bytes([0, 1, 1, 0b100])  # symbol 0; it begins at 0
    content = struct.pack("<I4s32I", 0, one_of_4096, *states)
    edit = instead(content, b"\2", 5, 2)
    return make("rans-units-run-out", edit, (~rare).astype("u1").tobytes(), dtype="U8")


MALFORMED_CODERS = (
    *_rests(),
    *_enec(),
    *_cascade(),
    *_cascade_intervals(),
    *_filler(),
    *_entropy(),
)
