"""Triton kernels that decode blocks; the host's part is in triton_decode.

One program decodes a block, in segments of `segment` words, a multiple of 256 so that runs are whole in all segments
but a block's last. The place of a word in a later stream is a running sum over the segment plus what the segments
before it used; there is no other dependence from word to word, and no branch on data. Reads stay within the streams
that the host has placed, whatever the blocks hold.

The language is that of Triton 3.2. All but positions in the frame and in the tensor are 32-bit integers. The frame must
lie at an address that is a multiple of 4.
"""

# No `from __future__ import annotations`: Triton reads the annotations of kernels, and some releases only real ones.

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

__all__ = ["cascade_kernel", "constant_kernel", "enec_kernel", "stored_kernel"]

_jit: Callable[[Callable[..., Any]], Any] = triton.jit


# Planes and fields: `base` is where one starts. Planes of 16 bits occur in sign_mantissa only, which begins the block.


@_jit
def _numbers(base: tl.tensor, start: tl.tensor, size: tl.constexpr, p: tl.constexpr) -> tl.tensor:
    """Numbers start to start + size - 1 of a plane of `p` bits, all in full runs: whole bytes, shifts by constants."""
    if p == 16:
        numbers = tl.load(base.to(tl.pointer_type(tl.uint16)) + start + tl.arange(0, size)).to(tl.int32)
    elif p == 8:
        numbers = tl.load(base + start + tl.arange(0, size)).to(tl.int32)
    else:
        octets = tl.load(base + start // 8 * p + tl.arange(0, size // 8 * p)).to(tl.int32)
        runs = tl.reshape(octets, [size // 256, 1, 32 * p])
        shifts = tl.arange(0, 8 // p)[None, :, None] * p
        numbers = tl.reshape((runs >> shifts) & ((1 << p) - 1), [size])
    return numbers


@_jit
def _numbers_at(base: tl.tensor, count: tl.tensor, places: tl.tensor, mask: tl.tensor, p: tl.constexpr) -> tl.tensor:
    """Numbers at any places of the plane of `count` numbers of `p` bits; those not in `mask` are 0 and not read."""
    if p == 16:
        numbers = tl.load(base.to(tl.pointer_type(tl.uint16)) + places, mask=mask, other=0).to(tl.int32)
    elif p == 8:
        numbers = tl.load(base + places, mask=mask, other=0).to(tl.int32)
    else:
        within = places & 255
        run_nbytes = tl.minimum((((count - (places - within)) * p + 31) >> 5) << 2, 32 * p)  # the last may be short
        row = within * 0
        for k in tl.static_range(1, 8 // p):
            row += (within >= k * run_nbytes).to(tl.int32)
        octets = tl.load(base + (places >> 8) * (32 * p) + within - row * run_nbytes, mask=mask, other=0)
        numbers = (octets.to(tl.int32) >> (row * p)) & ((1 << p) - 1)
    return numbers


@_jit
def _field_nbytes(count: tl.tensor, w: tl.constexpr) -> tl.tensor:
    """Size of a field of `count` numbers of `w` bits, w up to 31."""
    nbytes = count * 0
    for k in tl.static_range(5):
        if w & (16 >> k):
            nbytes += ((count * (16 >> k) + 31) >> 5) << 2
    return nbytes


@_jit
def _fields_at(base: tl.tensor, count: tl.tensor, places: tl.tensor, mask: tl.tensor, w: tl.constexpr) -> tl.tensor:
    """As _numbers_at, for fields of `w` bits, w up to 31."""
    fields = places * 0
    for k in tl.static_range(5):
        if w & (16 >> k):  # a plane of 16 >> k bits, behind those of the lowest `w & -(32 >> k)` bits
            plane = base + _field_nbytes(count, w & -(32 >> k))
            fields |= _numbers_at(plane, count, places, mask, 16 >> k) << (w & -(32 >> k))
    return fields


@_jit
def _fields(
    base: tl.tensor, count: tl.tensor, start: tl.tensor, size: tl.constexpr, w: tl.constexpr, whole: tl.constexpr
) -> tl.tensor:
    """Fields start to start + size - 1 of `count`, of `w` bits; `whole`: there are as many, and start is a run's."""
    places = start + tl.arange(0, size)
    if whole:
        fields = places * 0
        for k in tl.static_range(5):
            if w & (16 >> k):
                plane = base + _field_nbytes(count, w & -(32 >> k))
                fields |= _numbers(plane, start, size, 16 >> k) << (w & -(32 >> k))
    else:
        fields = _fields_at(base, count, places, places < count, w)
    return fields


# Kernels: `frame` is all its bytes, `words` all the output. Each row of `table` is about a block: index of its first
# word in the tensor, number of its words, then positions in the frame and parameters.


@_jit
def stored_kernel(frame: tl.tensor, table: tl.tensor, words: tl.tensor, segment: tl.constexpr) -> None:
    """Row: first word, n, words."""
    row = table + tl.program_id(0) * 3
    n = tl.load(row + 1).to(tl.int32)
    source = (frame + tl.load(row + 2)).to(tl.pointer_type(words.dtype.element_ty))
    for start in range(0, n, segment):
        i = start + tl.arange(0, segment)
        tl.store(words + tl.load(row) + i, tl.load(source + i, mask=i < n, other=0), mask=i < n)


@_jit
def constant_kernel(frame: tl.tensor, table: tl.tensor, words: tl.tensor, segment: tl.constexpr) -> None:
    """Row: first word, n, the word's value."""
    row = table + tl.program_id(0) * 3
    n = tl.load(row + 1).to(tl.int32)
    word = tl.load(row + 2).to(tl.int32)
    for start in range(0, n, segment):
        i = start + tl.arange(0, segment)
        tl.store(words + tl.load(row) + i, i * 0 + word, mask=i < n)


@_jit
def _store_words(
    frame: tl.tensor,
    row: tl.tensor,
    words: tl.tensor,
    start: tl.tensor,
    x: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    sign_mantissa_bits: tl.constexpr,
    trail: tl.constexpr,
    segment: tl.constexpr,
    whole: tl.constexpr,
) -> None:
    """Join the exponents x of a segment with sign and mantissa: `sign_mantissa_bits` bits above `trail` zeros."""
    n = tl.load(row + 1).to(tl.int32)
    sign_mantissa = _fields(frame + tl.load(row + 2), n, start, segment, sign_mantissa_bits, whole) << trail
    sign = sign_mantissa >> mantissa_bits
    mantissa = sign_mantissa & ((1 << mantissa_bits) - 1)
    word = (sign << (exponent_bits + mantissa_bits)) | (x << mantissa_bits) | mantissa
    i = start + tl.arange(0, segment)
    # In the interpreter of Triton 3.2 what depends on a cumsum has 64 bits until it is cast to another type.
    tl.store(words + tl.load(row) + i, word.to(tl.uint32), mask=i < n)


@_jit
def _enec_segment(
    frame: tl.tensor,
    row: tl.tensor,
    words: tl.tensor,
    start: tl.tensor,
    used: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    sign_mantissa_bits: tl.constexpr,
    trail: tl.constexpr,
    group: tl.constexpr,
    m: tl.constexpr,
    nb: tl.constexpr,
    segment: tl.constexpr,
    whole: tl.constexpr,
) -> tl.tensor:
    """Decode a segment; `used` groups before it have high parts. Returns that number for the next segment.

    The sum runs over groups, not words, and the high parts of a group lie side by side.
    """
    n = tl.load(row + 1).to(tl.int32)
    num_groups = (n + group - 1) // group
    num_high = tl.load(row + 6).to(tl.int32)

    low = _fields(frame + tl.load(row + 3), n, start, segment, m, whole)
    g = start // group + tl.arange(0, segment // group)
    has_high = _numbers_at(frame + tl.load(row + 4), num_groups, g, g < num_groups, 1)
    rank = used + tl.cumsum(has_high, 0) - has_high
    places = rank[:, None] * group + tl.arange(0, group)[None, :]
    in_high = (has_high[:, None] == 1) & (places < num_high)  # the last group may be short
    high = tl.reshape(_fields_at(frame + tl.load(row + 5), num_high, places, in_high, nb - m), [segment])

    y = low | (high << m)
    s = y - ((y >> (nb - 1)) << nb)
    x = (tl.load(row + 7).to(tl.int32) - s) & ((1 << exponent_bits) - 1)
    _store_words(frame, row, words, start, x, exponent_bits, mantissa_bits, sign_mantissa_bits, trail, segment, whole)
    return used + tl.sum(has_high, 0)


@_jit
def enec_kernel(
    frame: tl.tensor,
    table: tl.tensor,
    words: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    sign_mantissa_bits: tl.constexpr,
    trail: tl.constexpr,
    group: tl.constexpr,
    m: tl.constexpr,
    nb: tl.constexpr,
    segment: tl.constexpr,
) -> None:
    """Row: first word, n, sign_mantissa, low, mask, high, num_high, b."""
    row = table + tl.program_id(0) * 8
    n = tl.load(row + 1).to(tl.int32)
    full = n // segment * segment
    used = n * 0
    for start in range(0, full, segment):
        used = _enec_segment(
            frame, row, words, start, used,
            exponent_bits, mantissa_bits, sign_mantissa_bits, trail, group, m, nb, segment, True,
        )  # fmt: skip
    for start in range(full, n, segment):
        used = _enec_segment(
            frame, row, words, start, used,
            exponent_bits, mantissa_bits, sign_mantissa_bits, trail, group, m, nb, segment, False,
        )  # fmt: skip


@_jit
def _digits_to_exponents(tier: tl.tensor, digit: tl.tensor) -> tl.tensor:
    """By the tier's part of the row: the `below` first digits name what ends where the tiers before begin."""
    jump = tl.where(digit < tl.load(tier + 3).to(tl.int32), 0, tl.load(tier + 4).to(tl.int32))
    return tl.load(tier + 2).to(tl.int32) + digit + jump


@_jit
def _later_tier(
    frame: tl.tensor, tier: tl.tensor, used: tl.tensor, waiting: tl.tensor, x: tl.tensor, w: tl.constexpr
) -> Any:
    """Give the words that wait their exponents from a tier, whose `used` first digits went to earlier segments.

    Returns the words that still wait, x and the number of digits used: all as they were if w is 0, for no tier.
    """
    if w:
        count = tl.load(tier + 1).to(tl.int32)
        places = used + tl.cumsum(waiting.to(tl.int32), 0) - 1
        used += tl.sum(waiting.to(tl.int32), 0)
        digit = _fields_at(frame + tl.load(tier), count, places, waiting & (places < count), w)
        x = tl.where(waiting, _digits_to_exponents(tier, digit), x)
        waiting = waiting & (digit == (1 << w) - 1)
    return waiting, x, used


@_jit
def _cascade_segment(
    frame: tl.tensor,
    row: tl.tensor,
    words: tl.tensor,
    start: tl.tensor,
    used2: tl.tensor,
    used3: tl.tensor,
    used4: tl.tensor,
    used5: tl.tensor,
    used6: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    sign_mantissa_bits: tl.constexpr,
    trail: tl.constexpr,
    widths: tl.constexpr,
    segment: tl.constexpr,
    whole: tl.constexpr,
) -> Any:
    """Decode a segment; those before it used used2 digits of tier 2, and so on. Returns these for the next segment.

    One scalar for each tier, not a tensor in a loop: Triton-Ascend 3.2.0 lowers no address from a carried tensor.
    """
    n = tl.load(row + 1).to(tl.int32)
    digit = _fields(frame + tl.load(row + 3), n, start, segment, widths & 15, whole)
    x = _digits_to_exponents(row + 3, digit)
    waiting = (start + tl.arange(0, segment) < n) & (digit == (1 << (widths & 15)) - 1)
    waiting, x, used2 = _later_tier(frame, row + 8, used2, waiting, x, widths >> 4 & 15)
    waiting, x, used3 = _later_tier(frame, row + 13, used3, waiting, x, widths >> 8 & 15)
    waiting, x, used4 = _later_tier(frame, row + 18, used4, waiting, x, widths >> 12 & 15)
    waiting, x, used5 = _later_tier(frame, row + 23, used5, waiting, x, widths >> 16 & 15)
    waiting, x, used6 = _later_tier(frame, row + 28, used6, waiting, x, widths >> 20 & 15)
    _store_words(frame, row, words, start, x, exponent_bits, mantissa_bits, sign_mantissa_bits, trail, segment, whole)
    return used2, used3, used4, used5, used6


@_jit
def cascade_kernel(
    frame: tl.tensor,
    table: tl.tensor,
    words: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    sign_mantissa_bits: tl.constexpr,
    trail: tl.constexpr,
    widths: tl.constexpr,
    num_tiers: tl.constexpr,
    segment: tl.constexpr,
) -> None:
    """Row: first word, n, sign_mantissa, then for each tier: digits, their number, first exponent, below, jump.

    Digit d of a tier is the exponent `first + d`, plus `jump` from d = `below` on: past what the tiers before name.
    `widths` has four bits for each of `num_tiers` tiers, of which the bytes are the last: 0x8322 for 2, 2, 3 and bytes.
    """
    row = table + tl.program_id(0) * (3 + 5 * num_tiers)
    n = tl.load(row + 1).to(tl.int32)
    full = n // segment * segment
    used2 = n * 0
    used3 = n * 0
    used4 = n * 0
    used5 = n * 0
    used6 = n * 0
    for start in range(0, full, segment):
        used2, used3, used4, used5, used6 = _cascade_segment(
            frame, row, words, start, used2, used3, used4, used5, used6,
            exponent_bits, mantissa_bits, sign_mantissa_bits, trail, widths, segment, True,
        )  # fmt: skip
    for start in range(full, n, segment):
        used2, used3, used4, used5, used6 = _cascade_segment(
            frame, row, words, start, used2, used3, used4, used5, used6,
            exponent_bits, mantissa_bits, sign_mantissa_bits, trail, widths, segment, False,
        )  # fmt: skip
