"""Triton functions on blocks: where their streams stand, and their words, four exponents a register.

A block's launch data are ROW 32-bit numbers, from which and from the constants of a launch all else follows:

    0  its position in the frame, in units of 32 bytes      4  n2 | n3 << 16; enec: num_high
    1  its ordinal                                          5  n4 | n5 << 16
    2  the number of its words                              6  n6
    3  lo | a2 << 8 | a3 << 12 | ...; enec: b               7  its first run in the table of later runs;
                                                               tier shape (4): its first escape in the list of all

In a constant block, 3 and 4 are eight bytes of such words.
`row` points to them, or is a tensor of such pointers. `widths` has four bits for each tier, the bytes among them:
0x8322 for 2, 2, 3 and bytes. The *later runs* of a block are those of its tiers from the second on, or those of enec's
high parts. They have 256 bytes each in a buffer of resolved exponents, and tiers an entry each in a table: how many
digits of the tier escape before the run.
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from .fields import (
    BY_GROUP,
    add_in_bytes,
    bytes_of,
    escapes_in,
    group,
    look_up,
    merge,
    numbers_in_group,
    row_stride,
    select_following,
    stream_nwords,
    subtract_in_bytes,
)

_jit: Callable[[Callable[..., Any]], Any] = triton.jit


_ROW = tl.constexpr(8)


@_jit
def block_row(table: tl.tensor, number: tl.tensor) -> tl.tensor:
    """The launch data of a block of a launch."""
    return table + number * _ROW


@_jit
def ordinal(row: tl.tensor) -> tl.tensor:
    """Which block of the frame it is."""
    return tl.load(row + 1)


@_jit
def num_words(row: tl.tensor) -> tl.tensor:
    """How many words it has."""
    return tl.load(row + 2)


@_jit
def block_stream(frame: tl.tensor, row: tl.tensor) -> tl.tensor:
    """The first 32-bit word of a block."""
    return frame + tl.load(row).to(tl.uint32).to(tl.int64) * 8


@_jit
def numbers_in_tier(row: tl.tensor, tier: tl.constexpr) -> tl.tensor:
    """How many digits tier 1, 2, ... has."""
    place: tl.constexpr = 4 + (tier - 2) // 2
    return num_words(row) if tier == 1 else (tl.load(row + place) >> (16 * (tier % 2))) & 0xFFFF


@_jit
def tier_stream(
    frame: tl.tensor, row: tl.tensor, tier: tl.constexpr, widths: tl.constexpr, rest_bits: tl.constexpr,
    whole: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Where tier 1, 2, ... stands; `whole`: as for `stream_nwords`, and for the first two tiers only."""
    stream = block_stream(frame, row) + stream_nwords(num_words(row), rest_bits, whole)
    for i in tl.static_range(1, tier):
        stream += stream_nwords(numbers_in_tier(row, i), (widths >> (4 * i - 4)) & 15, whole and i == 1)
    return stream


@_jit
def later_runs(row: tl.tensor, tier: tl.constexpr) -> tl.tensor:
    """The first run of a tier from the second on among all later runs."""
    first = tl.load(row + 7)
    for i in tl.static_range(2, tier):
        first += (numbers_in_tier(row, i) + 255) >> 8
    return first


@_jit
def later_octets(resolved: tl.tensor, run: tl.tensor) -> tl.tensor:
    """The resolved exponents of a later run, as 32-bit words."""
    return resolved + run * 64


@_jit
def interval(row: tl.tensor, tier: tl.constexpr, widths: tl.constexpr) -> Any:
    """The exponent that digit 0 of a tier names, how many of its digits name exponents below those of earlier tiers,
    and the jump behind them."""
    parameters = tl.load(row + 3)
    begin = parameters & 0xFF
    below = begin * 0
    end = begin
    jump = below
    for i in tl.static_range(1, tier + 1):
        if i > 1:
            below = (parameters >> (4 * i)) & 15
        jump = end - begin
        begin -= below
        end = begin + jump + ((1 << ((widths >> (4 * i - 4)) & 15)) - 1)
    return begin, below, jump


# Counts: the counters of the rows of a word, one byte each, are summed together over the words of a run -------------


@_jit
def escapes_of_rows(
    field: tl.tensor, count: tl.tensor, run: tl.tensor, in_run: tl.tensor, j: tl.tensor, exists: tl.tensor,
    w: tl.constexpr, lead: tl.constexpr, whole: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """In byte k: how many digits of row k escape; none in lanes that do not exist."""
    if (w == 2) and (lead == 2):
        words = tl.load(field + run * 16 + j)
        escapes = words & (words >> 1) & 0x55555555
        even = ((escapes & 0x11111111) * 0x01010101) >> 24  # row 0, and 16 times row 2
        odd = (((escapes >> 2) & 0x11111111) * 0x01010101) >> 24
        both = even | (odd << 8)
        counts = (both & 0x0F0F) | ((both & 0xF0F0) << 12)
    else:
        packed: tl.constexpr = tl.uint64 if lead == 1 else tl.uint32
        counts = ((run + j) * 0).to(packed)
        for k in tl.static_range(8 // lead):
            digits = numbers_in_group(field, count, run, in_run, j, k, w, lead, whole)
            counts += ((escapes_in(digits, w) * 0x01010101) >> 24).to(packed) << (8 * k)
    if not whole:
        counts = tl.where(exists, counts, 0)
    return counts


@_jit
def preceding_in_run(counts: tl.tensor, rows: tl.constexpr) -> tl.tensor:
    """In byte k: how many come before row k of this word in the run, which is row by row. `counts` has theirs."""
    total = tl.sum(counts, 1, keep_dims=True).to(counts.dtype)
    before = tl.cumsum(counts, 1).to(counts.dtype) - counts
    if rows == 8:
        before += total * 0x0101010101010100
    elif rows == 4:
        before += total * 0x01010100
    elif rows == 2:
        before += total << 8
    return before


# Exponents: four a register -------------------------------------------------------------------------------------------


@_jit
def cascade_exponents(
    field: tl.tensor, count: tl.tensor, run: tl.tensor, in_run: tl.tensor, j: tl.tensor, k: tl.constexpr,
    first: tl.tensor, below: tl.tensor, jump: tl.tensor, earlier: tl.tensor, preceding: tl.tensor, following: tl.tensor,
    w: tl.constexpr, tier: tl.constexpr, lead: tl.constexpr, whole: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The exponents of row k of the tile of a tier's digits, whose `interval` is first, below, jump.

    `following` has the exponents that escape: `earlier` of them before the run, and as many as byte k of `preceding`
    says between its begin and the group. Two 32-bit words of it are read.
    """
    digits = numbers_in_group(field, count, run, in_run, j, k, w, lead, whole)
    escapes = escapes_in(digits, w)
    names = digits & ~(escapes * 255)  # else the sum of an escape might carry into the next byte
    names = names + bytes_of(first) if tier == 1 else add_in_bytes(names, first, below, jump)
    place = earlier + ((preceding >> (8 * k)) & 0xFF).to(tl.int32)
    start = earlier >> 2 if lead == BY_GROUP else 0
    at = (place >> 2) - start
    low = look_up(following, start, at, 128, lead)
    high = look_up(following, start, at + 1, 128, lead)
    window = low.to(tl.uint64) | (high.to(tl.uint64) << 32)
    window = (window >> ((place & 3) * 8).to(tl.uint64)).to(tl.uint32)
    return select_following(names, escapes, window)


@_jit
def mask_bits(
    mask: tl.tensor, num_groups: tl.tensor, run: tl.tensor, number: tl.tensor, valid: tl.tensor,
    quads_log2: tl.constexpr, lead: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The mask bit of enec for group `number` of a run of words. 4 << quads_log2 of such runs share one of the mask."""
    shared: tl.constexpr = 2 + quads_log2
    in_run = tl.minimum(num_groups - (run >> shared) * 256, 256)
    stride = tl.maximum(row_stride(in_run, 1, False), 1)
    in_mask = (run & ((1 << shared) - 1)) * (64 >> quads_log2) + number
    quad = in_mask >> 2
    row = (quad * ((65535 + stride) // stride)) >> 16  # quad // stride
    if lead == BY_GROUP:
        words = look_up(mask, (run >> shared) * 8, quad - row * stride, 8, lead)
    else:
        at = mask + (run >> shared) * 8 + quad - row * stride
        words = tl.load(at, mask=valid & (in_mask < in_run), other=0)
    return (words >> (row + (in_mask & 3) * 8).to(tl.uint32)) & 1


@_jit
def mask_of_runs(
    mask: tl.tensor, num_groups: tl.tensor, run: tl.tensor, in_run: tl.tensor, lane: tl.tensor,
    quads_log2: tl.constexpr, lead: tl.constexpr, whole: tl.constexpr,
) -> Any:  # fmt: skip
    """In byte k, of row k of the tile: enec's mask bit, and how many are set before it in the run. `lane` is j without
    its limit."""
    packed: tl.constexpr = tl.uint64 if lead == 1 else tl.uint32
    flags = ((run + lane) * 0).to(packed)
    starts = flags
    stride = row_stride(in_run, lead, whole)
    for k in tl.static_range(8 // lead):
        g = stride * k + lane
        valid = (lane < stride) & (g * 4 < in_run)
        bits = mask_bits(mask, num_groups, run, g >> quads_log2, valid, quads_log2, lead)
        flags |= bits.to(packed) << (8 * k)
        starts |= tl.where((g & ((1 << quads_log2) - 1)) == 0, bits, 0).to(packed) << (8 * k)
    return flags, preceding_in_run(starts, 8 // lead) + starts - flags


@_jit
def _high_of_groups(
    high_parts: tl.tensor, earlier: tl.tensor, preceding: tl.tensor, flags: tl.tensor, g: tl.tensor, k: tl.constexpr,
    quads_log2: tl.constexpr, lead: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The high parts of group g, of row k, four a register; 0 where its mask bit is. `preceding` and `flags` are those
    of `mask_of_runs`, `earlier` is how many mask bits are set before the run."""
    in_run = ((preceding >> (8 * k)) & 0xFF).to(tl.int32)
    flagged = ((flags >> (8 * k)) & 1) != 0  # not > 0: Ascend's compiler refuses it of unsigned numbers
    in_quads = g & ((1 << quads_log2) - 1)
    if lead == BY_GROUP:
        place = ((in_run << quads_log2) + in_quads) & 63
        high = tl.where(flagged, look_up(high_parts, earlier << quads_log2, place, 64, lead), 0)
    else:
        high = tl.load(high_parts + (((earlier + in_run) << quads_log2) + in_quads), mask=flagged, other=0)
    return high


@_jit
def enec_exponents(
    low_field: tl.tensor, count: tl.tensor, run: tl.tensor, in_run: tl.tensor, j: tl.tensor, k: tl.constexpr,
    b: tl.tensor, high_parts: tl.tensor, earlier: tl.tensor, preceding: tl.tensor, flags: tl.tensor,
    quads_log2: tl.constexpr, m: tl.constexpr, nb: tl.constexpr, exponent_bits: tl.constexpr, lead: tl.constexpr,
    whole: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The exponents of row k of the tile of low parts: b - y.

    y is the low part and, in groups whose mask bit is set, a high one. It is a two's complement of nb bits: its highest
    bit is inverted, and b grows by what that bit stood for.
    """
    low = numbers_in_group(low_field, count, run, in_run, j, k, m, lead, whole)
    g = row_stride(in_run, lead, whole) * k + j
    high = _high_of_groups(high_parts, earlier, preceding, flags, g, k, quads_log2, lead)
    y = (low | (high << m)) ^ ((1 << (nb - 1)) * 0x01010101)
    x = subtract_in_bytes(bytes_of((b + (1 << (nb - 1))) & 0xFF), y)
    return x & (((1 << exponent_bits) - 1) * 0x01010101)


# Words ----------------------------------------------------------------------------------------------------------------


@_jit
def _moved(octets: tl.tensor, shift: tl.constexpr) -> tl.tensor:
    """Each byte shifted by itself, to the left; to the right if `shift` is negative."""
    if shift >= 0:
        moved = (octets << shift) & (((0xFF << shift) & 0xFF) * 0x01010101)
    else:
        moved = (octets >> (-shift)) & ((0xFF >> (-shift)) * 0x01010101)
    return moved


@_jit
def _plane_octet(
    plane: tl.tensor, run: tl.tensor, in_run: tl.tensor, j: tl.tensor, k: tl.constexpr,
    p: tl.constexpr, lead: tl.constexpr, whole: tl.constexpr, upper: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """A group of a plane; if it has 16 bits, the upper or the lower bytes."""
    if p == 16:
        g = row_stride(in_run, lead, whole) * k + j
        if not whole:
            g = tl.minimum(g, (in_run - 1) >> 2)
        at = plane + run * 128 + g * 2
        first = tl.load(at)
        second = tl.load(at + 1)
        if upper:
            low = ((first >> 8) & 0xFF) | ((first >> 16) & 0xFF00)
            octets = low | ((second << 8) & 0xFF0000) | (second & 0xFF000000)
        else:
            low = (first & 0xFF) | ((first >> 8) & 0xFF00)
            octets = low | ((second & 0xFF) << 16) | ((second << 8) & 0xFF000000)
    else:
        octets = group(plane, run, in_run, j, k, p, lead, whole)
    return octets


@_jit
def _part_of_octet(
    plane: tl.tensor, run: tl.tensor, in_run: tl.tensor, j: tl.tensor, k: tl.constexpr, p: tl.constexpr,
    lead: tl.constexpr, whole: tl.constexpr, upper: tl.constexpr, shift: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The bits that a plane contributes to the byte, if its lowest bit is bit `shift` of it."""
    part = (run + j).to(tl.uint32) * 0
    if (shift > -8) and (shift < 8):
        part = _moved(_plane_octet(plane, run, in_run, j, k, p, lead, whole, upper), shift)
    return part


@_jit
def _rest_octet(
    rest: tl.tensor, count: tl.tensor, run: tl.tensor, in_run: tl.tensor, j: tl.tensor, k: tl.constexpr,
    rest_bits: tl.constexpr, trail: tl.constexpr, lead: tl.constexpr, whole: tl.constexpr,
    byte: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Byte `byte` of four rests, of which `rest_bits` bits above `trail` zeros are stored."""
    octets = (run + j).to(tl.uint32) * 0
    for i in tl.static_range(5):
        if rest_bits & (16 >> i):
            plane = rest + stream_nwords(count, rest_bits & -(32 >> i), whole)
            for half in tl.static_range(2 if i == 0 else 1):
                octets |= _part_of_octet(
                    plane, run, in_run, j, k, 16 >> i, lead, whole, half == 1,
                    (rest_bits & -(32 >> i)) + trail + 8 * half - 8 * byte,
                )  # fmt: skip
    return octets


@_jit
def octet_of_words(
    x: tl.tensor, rest: tl.tensor, count: tl.tensor, run: tl.tensor, in_run: tl.tensor, j: tl.tensor,
    k: tl.constexpr, exponent_bits: tl.constexpr, mantissa_bits: tl.constexpr, rest_bits: tl.constexpr,
    trail: tl.constexpr, lead: tl.constexpr, whole: tl.constexpr, byte: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Byte `byte` of four words: mantissa, exponent and sign, as far as they lie in it."""
    below: tl.constexpr = mantissa_bits - 8 * byte  # bits of the mantissa in this byte and in higher ones
    sign: tl.constexpr = mantissa_bits // 8
    octets = x * 0
    if below >= 8:
        octets = _rest_octet(rest, count, run, in_run, j, k, rest_bits, trail, lead, whole, byte)
    elif below > 0:
        mantissa = _rest_octet(rest, count, run, in_run, j, k, rest_bits, trail, lead, whole, byte)
        octets = merge(mantissa, x << below, ((1 << below) - 1) * 0x01010101)
    elif below == -1:
        octets = x >> 1  # the highest bit, which is its neighbour's, gives way to the sign
    elif below > -8:
        octets = _moved(x, below)
    if 8 * byte + 7 == exponent_bits + mantissa_bits:
        signs = _rest_octet(rest, count, run, in_run, j, k, rest_bits, trail, lead, whole, sign)
        octets = merge(signs << (7 - mantissa_bits % 8), octets, 0x80808080)
    return octets


@_jit
def pairs_of_words(lower: tl.tensor, upper: tl.tensor) -> Any:
    """Words of 16 bits from their bytes, in their order: the first two, then the others."""
    even = merge(lower, upper << 8, 0x00FF00FF)
    odd = merge(lower >> 8, upper, 0x00FF00FF)
    first = (even & 0xFFFF) | (odd << 16)
    second = (even >> 16) | (odd & 0xFFFF0000)
    return first, second
