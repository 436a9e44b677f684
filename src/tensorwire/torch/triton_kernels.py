"""Triton kernels that decode blocks; the host's part is in triton_decode.

One program decodes a block, in segments of `segment` words, a multiple of 256 so that runs are whole in all segments
but a block's last. The place of a word in a later stream is a running sum over the segment plus what the segments
before it used; there is no other dependence from word to word, and no branch on data. Reads stay within the streams
that the host has placed, whatever the blocks hold.

The language is that of Triton 3.2. All but positions in the frame and in the tensor are 32-bit integers.
"""

# No `from __future__ import annotations`: Triton reads the annotations of kernels, and some releases only real ones.

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

__all__ = ["cascade_kernel", "copy_kernel", "enec_kernel"]

_jit: Callable[[Callable[..., Any]], Any] = triton.jit


# Planes and fields: `i` are indices of numbers, a tensor of any shape; where `mask` is not set nothing is read.


@_jit
def _number(
    base: tl.tensor, count: tl.tensor, i: tl.tensor, mask: tl.tensor, p: tl.constexpr, whole: tl.constexpr
) -> tl.tensor:
    """Numbers i of the plane of `count` numbers of `p` bits at `base`.

    whole: all of them lie in full runs, so byte and shift follow from i by constants.
    """
    if p == 16:
        low = tl.load(base + 2 * i, mask=mask, other=0).to(tl.int32)
        high = tl.load(base + 2 * i + 1, mask=mask, other=0).to(tl.int32)
        number = low | (high << 8)
    elif p == 8:
        number = tl.load(base + i, mask=mask, other=0).to(tl.int32)
    else:
        within = i & 255
        if whole:
            row = within // (32 * p)
            byte = within & (32 * p - 1)
        else:
            size = tl.minimum(((count - (i - within)) * p + 7) >> 3, 32 * p)  # of the run; the last may be short
            row = within * 0
            for k in tl.static_range(1, 8 // p):
                row += (within >= k * size).to(tl.int32)
            byte = within - row * size
        octet = tl.load(base + (i >> 8) * (32 * p) + byte, mask=mask, other=0).to(tl.int32)
        number = (octet >> (row * p)) & ((1 << p) - 1)
    return number


@_jit
def _field_nbytes(count: tl.tensor, w: tl.constexpr) -> tl.tensor:
    """F(count, w), w up to 31."""
    nbytes = count * 0
    for k in tl.static_range(5):
        if w & (16 >> k):
            nbytes += (count * (16 >> k) + 7) >> 3
    return nbytes


@_jit
def _field(
    base: tl.tensor, count: tl.tensor, i: tl.tensor, mask: tl.tensor, w: tl.constexpr, whole: tl.constexpr
) -> tl.tensor:
    """Fields i of the `count` fields of `w` bits at `base`, w up to 31; `whole` as for _number."""
    field = i * 0
    for k in tl.static_range(5):
        if w & (16 >> k):  # a plane of 16 >> k bits; `w & -(32 >> k)` bits stand in the planes before it
            plane = base + _field_nbytes(count, w & -(32 >> k))
            field |= _number(plane, count, i, mask, 16 >> k, whole) << (w & -(32 >> k))
    return field


# Kernels: `frame` is all its bytes, `words` all the output. Each row of `table` is about a block: index of its first
# word in the tensor, number of its words, then positions in the frame and parameters.


@_jit
def copy_kernel(
    frame: tl.tensor,
    table: tl.tensor,
    words: tl.tensor,
    word_nbytes: tl.constexpr,
    step: tl.constexpr,
    segment: tl.constexpr,
) -> None:
    """Stored and constant blocks: word i stands `step` bytes behind word i - 1."""
    row = table + tl.program_id(0) * 3
    n = tl.load(row + 1).to(tl.int32)
    source = frame + tl.load(row + 2)
    for start in range(0, n, segment):
        i = start + tl.arange(0, segment)
        live = i < n
        word = i * 0
        for k in tl.static_range(word_nbytes):
            word |= tl.load(source + i * step + k, mask=live, other=0).to(tl.int32) << (8 * k)
        tl.store(words + tl.load(row) + i, word, mask=live)


@_jit
def _store_words(
    frame: tl.tensor,
    row: tl.tensor,
    words: tl.tensor,
    i: tl.tensor,
    live: tl.tensor,
    x: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    rest_bits: tl.constexpr,
    trail: tl.constexpr,
    whole: tl.constexpr,
) -> None:
    """Join the exponents x of words i with their rests, of which `rest_bits` bits are stored above `trail` zeros."""
    n = tl.load(row + 1).to(tl.int32)
    rest = _field(frame + tl.load(row + 2), n, i, live, rest_bits, whole) << trail
    sign = rest >> mantissa_bits
    mantissa = rest & ((1 << mantissa_bits) - 1)
    word = (sign << (exponent_bits + mantissa_bits)) | (x << mantissa_bits) | mantissa
    tl.store(words + tl.load(row) + i, word, mask=live)


@_jit
def _enec_segment(
    frame: tl.tensor,
    row: tl.tensor,
    words: tl.tensor,
    start: tl.tensor,
    used: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    rest_bits: tl.constexpr,
    trail: tl.constexpr,
    group: tl.constexpr,
    m: tl.constexpr,
    nb: tl.constexpr,
    segment: tl.constexpr,
    whole: tl.constexpr,
) -> tl.tensor:
    """Decode a segment; `used` groups before it have high parts. Returns that number for the next segment.

    Words are a tile of groups by lanes: the only sum runs over groups, and the high parts of a group lie side by side.
    """
    n = tl.load(row + 1).to(tl.int32)
    num_groups = (n + group - 1) // group
    num_high = tl.load(row + 6).to(tl.int32)
    g = start // group + tl.arange(0, segment // group)
    lane = tl.arange(0, group)
    i = g[:, None] * group + lane[None, :]
    live = i < n

    low = _field(frame + tl.load(row + 3), n, i, live, m, whole)
    has_high = _number(frame + tl.load(row + 4), num_groups, g, g < num_groups, 1, False)
    rank = used + tl.cumsum(has_high, 0) - has_high
    place = rank[:, None] * group + lane[None, :]
    in_high = live & (has_high[:, None] == 1) & (place < num_high)
    high = _field(frame + tl.load(row + 5), num_high, place, in_high, nb - m, False)

    y = low | (high << m)
    s = y - ((y >> (nb - 1)) << nb)
    x = (tl.load(row + 7).to(tl.int32) - s) & ((1 << exponent_bits) - 1)
    _store_words(frame, row, words, i, live, x, exponent_bits, mantissa_bits, rest_bits, trail, whole)
    return used + tl.sum(has_high, 0)


@_jit
def enec_kernel(
    frame: tl.tensor,
    table: tl.tensor,
    words: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    rest_bits: tl.constexpr,
    trail: tl.constexpr,
    group: tl.constexpr,
    m: tl.constexpr,
    nb: tl.constexpr,
    segment: tl.constexpr,
) -> None:
    """Row: first word, n, rest, low, mask, high, num_high, b."""
    row = table + tl.program_id(0) * 8
    n = tl.load(row + 1).to(tl.int32)
    full = n // segment * segment
    used = n * 0
    for start in range(0, full, segment):
        used = _enec_segment(
            frame, row, words, start, used,
            exponent_bits, mantissa_bits, rest_bits, trail, group, m, nb, segment, True,
        )  # fmt: skip
    for start in range(full, n, segment):
        used = _enec_segment(
            frame, row, words, start, used,
            exponent_bits, mantissa_bits, rest_bits, trail, group, m, nb, segment, False,
        )  # fmt: skip


@_jit
def _tier(
    base: tl.tensor,
    count: tl.tensor,
    used: tl.tensor,
    waiting: tl.tensor,
    x: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    below: tl.tensor,
    w: tl.constexpr,
) -> Any:
    """Give the words that wait their exponents from a tier, whose `used` first digits went to earlier segments.

    The tiers before name [first, end); this one names `below` exponents under them and the others above.
    Returns x, the words that still wait, and the number of digits used.
    """
    place = used + tl.cumsum(waiting.to(tl.int32), 0) - 1
    digit = _field(base, count, place, waiting & (place < count), w, False)
    named = tl.where(digit < below, first - below + digit, end - below + digit)
    escaped = waiting & (digit == (1 << w) - 1)
    return tl.where(waiting, named, x), escaped, used + tl.sum(waiting.to(tl.int32), 0)


@_jit
def _cascade_segment(
    frame: tl.tensor,
    row: tl.tensor,
    words: tl.tensor,
    start: tl.tensor,
    used2: tl.tensor,
    used3: tl.tensor,
    used_bytes: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    rest_bits: tl.constexpr,
    trail: tl.constexpr,
    w1: tl.constexpr,
    w2: tl.constexpr,
    w3: tl.constexpr,
    segment: tl.constexpr,
    whole: tl.constexpr,
) -> Any:
    """Decode a segment; used2, used3 and used_bytes numbers of the later streams belong to the segments before it.

    Returns these counts for the next segment.
    """
    n = tl.load(row + 1).to(tl.int32)
    i = start + tl.arange(0, segment)
    live = i < n
    digit = _field(frame + tl.load(row + 3), n, i, live, w1, whole)
    first = tl.load(row + 4).to(tl.int32)
    end = first + ((1 << w1) - 1)
    x = first + digit
    waiting = live & (digit == (1 << w1) - 1)
    if w2:
        base = frame + tl.load(row + 5)
        count = tl.load(row + 6).to(tl.int32)
        below = tl.load(row + 7).to(tl.int32)
        x, waiting, used2 = _tier(base, count, used2, waiting, x, first, end, below, w2)
        first -= below
        end += ((1 << w2) - 1) - below
    if w3:
        base = frame + tl.load(row + 8)
        count = tl.load(row + 9).to(tl.int32)
        below = tl.load(row + 10).to(tl.int32)
        x, waiting, used3 = _tier(base, count, used3, waiting, x, first, end, below, w3)
    # The bytes are a tier that names 0 to 255.
    base = frame + tl.load(row + 11)
    count = tl.load(row + 12).to(tl.int32)
    x, waiting, used_bytes = _tier(base, count, used_bytes, waiting, x, 0, 0, 0, 8)
    _store_words(frame, row, words, i, live, x, exponent_bits, mantissa_bits, rest_bits, trail, whole)
    return used2, used3, used_bytes


@_jit
def cascade_kernel(
    frame: tl.tensor,
    table: tl.tensor,
    words: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    rest_bits: tl.constexpr,
    trail: tl.constexpr,
    w1: tl.constexpr,
    w2: tl.constexpr,
    w3: tl.constexpr,
    segment: tl.constexpr,
) -> None:
    """Row: first word, n, rest, tier 1, lo, tier 2, n2, a2, tier 3, n3, a3, bytes, number of bytes.

    w2 and w3 are 0 where the variant has no such tier.
    """
    row = table + tl.program_id(0) * 13
    n = tl.load(row + 1).to(tl.int32)
    full = n // segment * segment
    used2 = n * 0
    used3 = n * 0
    used_bytes = n * 0
    for start in range(0, full, segment):
        used2, used3, used_bytes = _cascade_segment(
            frame, row, words, start, used2, used3, used_bytes,
            exponent_bits, mantissa_bits, rest_bits, trail, w1, w2, w3, segment, True,
        )  # fmt: skip
    for start in range(full, n, segment):
        used2, used3, used_bytes = _cascade_segment(
            frame, row, words, start, used2, used3, used_bytes,
            exponent_bits, mantissa_bits, rest_bits, trail, w1, w2, w3, segment, False,
        )  # fmt: skip
