"""A Triton kernel that multiplies inputs with compressed rows of BF16, which no memory ever holds dense.

A block is whole rows, and a row whole runs. A program takes `rows` rows, which may be of several blocks, and `chunks`
runs of each at a time. It makes float32 of the words and adds their products with up to eight inputs. A lane adds what
it sees in order; lanes are summed at the end. A sum depends on nothing but its row, its input and these two numbers.

Of a cascade of the one tier (4) a few words in ten thousand escape. They count as zero at first. Their places and
exponents stand in a list, by which their products are added last. Other cascades look up what escapes, as when they are
decoded, so `resolve_kernel` runs first.
"""

# No `from __future__ import annotations`: Triton reads the annotations of kernels, and some releases only real ones.

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from .blocks import (
    block_row,
    block_stream,
    cascade_exponents,
    enec_exponents,
    escapes_of_rows,
    interval,
    later_octets,
    mask_of_runs,
    num_words,
    octet,
    octet_of_words,
    ordinal,
    pairs_of_words,
    ranks_in_run,
    tier_stream,
)
from .fields import bytes_of, numbers_in_group, spread_sign, stream_nwords

__all__ = ["CASCADE", "DENSE", "ENEC", "LISTED", "product_kernel"]

_jit: Callable[[Callable[..., Any]], Any] = triton.jit
_ESCAPES = tl.constexpr(8)  # of a row at a time

DENSE = tl.constexpr(0)  # blocks that are words
CASCADE = tl.constexpr(1)
LISTED = tl.constexpr(2)  # cascades of the one tier (4) with lo up to 240
ENEC = tl.constexpr(3)


@_jit
def _add(total: tl.tensor, weight: tl.tensor, x: tl.tensor, number: tl.constexpr, inputs: tl.constexpr) -> tl.tensor:
    """Add the product with input `number`, if there is such a one."""
    if number < inputs:
        total += weight * tl.load(x)
    return total


@_jit
def _sum(total: tl.tensor) -> tl.tensor:
    """Over lanes, then over the runs that stand side by side."""
    return tl.sum(tl.sum(total, 2), 1)


@_jit
def _listed_products(
    frame: tl.tensor, row: tl.tensor, in_block: tl.tensor, before: tl.tensor, places: tl.tensor, exponents: tl.tensor,
    x: tl.tensor, columns: tl.int32, runs_per_block: tl.int32, exists: tl.tensor, lead: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The products of the words that escape from rows, with one input."""
    runs_per_row = columns >> 8
    first_run = ordinal(row) * runs_per_block + in_block * runs_per_row
    start = tl.load(before + first_run).to(tl.int32) & 0xFFFF
    behind = in_block * runs_per_row + runs_per_row < (num_words(row) >> 8)
    stop = tl.load(before + first_run + runs_per_row, mask=behind, other=0).to(tl.int32) & 0xFFFF
    stop = tl.where(behind, stop, tl.load(row + 4) & 0xFFFF)
    rest = block_stream(frame, row)[:, None]
    listed = tl.load(row + 7)[:, None]
    first_place = (in_block * columns)[:, None]
    number = start[:, None] + tl.arange(0, _ESCAPES)[None, :]
    total = (number * 0).to(tl.float32)
    for i in range(0, tl.max(tl.where(exists, stop - start, 0), 0), _ESCAPES):
        mask = number + i < stop[:, None]
        place = tl.load(places + listed + number + i, mask=mask, other=0)
        exponent = tl.load(exponents + listed + number + i, mask=mask, other=0).to(tl.uint32)
        sign_mantissa = octet(rest, place, mask)
        word = ((sign_mantissa & 0x80) << 24) | (exponent << 23) | ((sign_mantissa & 0x7F) << 16)
        column = place - first_place
        quad = (column & 255) >> 2
        at = (column >> 8 << 8) + (quad // (8 * lead) * 4 + (column & 3)) * (8 * lead) + quad % (8 * lead)
        total += tl.where(mask, word.to(tl.float32, bitcast=True) * tl.load(x + at, mask=mask, other=0.0), 0.0)
    return tl.sum(total, 1)


@_jit
def product_kernel(
    frame: tl.tensor, table: tl.tensor, before: tl.tensor, resolved: tl.tensor, places: tl.tensor,
    exponents: tl.tensor, x: tl.tensor, y: tl.tensor, num_rows: tl.int32, rows_per_block: tl.int32,
    columns: tl.int32, all_rows: tl.int32, coding: tl.constexpr, widths: tl.constexpr, last: tl.constexpr,
    quads_log2: tl.constexpr, m: tl.constexpr, nb: tl.constexpr, inputs: tl.constexpr, lead: tl.constexpr,
    permutation: tl.constexpr, chunks: tl.constexpr, rows: tl.constexpr,
) -> None:  # fmt: skip
    """`num_rows` rows of the blocks of `table`, `rows_per_block` of each but the last.

    `x` has the inputs as float32, run by run, and in a run in the order in which a tile sees them (`arranged`); `y` has
    `all_rows` numbers for each.
    """
    w: tl.constexpr = m if coding == ENEC else widths & 15
    number = tl.program_id(0) * rows + tl.arange(0, rows)
    exists = number < num_rows
    number = tl.minimum(number, num_rows - 1)
    runs_per_row = columns >> 8
    runs_per_block = rows_per_block * runs_per_row
    slot = number // rows_per_block
    in_block_flat = number - slot * rows_per_block
    in_block = in_block_flat[:, None, None]
    flat = block_row(table, slot)
    row = flat[:, None, None]

    n = num_words(row)
    rest = block_stream(frame, row)
    if coding == ENEC:
        field = rest + stream_nwords(n, 8, True)
        mask = field + stream_nwords(n, m, True)
        num_groups = (n + (4 << quads_log2) - 1) >> (2 + quads_log2)
        b = tl.load(row + 3) & 0xFF
        following = later_octets(resolved, tl.load(row + 7))
    elif coding != DENSE:
        field = tier_stream(frame, row, 1, widths, 8, True)
        first, below, jump = interval(row, 1, widths)
        if coding == CASCADE:
            following = later_octets(resolved, tl.load(row + 7))
            if last == 1:
                following = tier_stream(frame, row, 2, widths, 8, True)

    j = tl.arange(0, 8 * lead)[None, None, :]
    full = n * 0 + 256
    zero = tl.zeros([rows, chunks, 8 * lead], tl.float32)
    y0 = zero
    y1 = zero
    y2 = zero
    y3 = zero
    y4 = zero
    y5 = zero
    y6 = zero
    y7 = zero
    for chunk in range(0, runs_per_row, chunks):
        in_row = chunk + tl.arange(0, chunks)[None, :, None]
        run = in_block * runs_per_row + in_row
        if (coding != DENSE) and (coding != LISTED):
            earlier = tl.load(before + ordinal(row) * runs_per_block + run).to(tl.int32) & 0xFFFF
        if coding == ENEC:
            flags, rank = mask_of_runs(mask, num_groups, run, full, j, 2, quads_log2, lead, True)
        elif coding == CASCADE:
            counts = escapes_of_rows(field, n, run, full, j, j >= 0, w, lead, True)
            rank = ranks_in_run(counts, 2, 8 // lead)
        for k in tl.static_range(8 // lead):
            if coding == DENSE:
                at = rest + (run * 64 + 8 * lead * k + j) * 2
                pair0 = tl.load(at)
                pair1 = tl.load(at + 1)
            else:
                if coding == ENEC:
                    exponent = enec_exponents(
                        field, n, run, full, j, k, b, following, earlier, rank, flags,
                        quads_log2, m, nb, 8, lead, True,
                    )  # fmt: skip
                elif coding == CASCADE:
                    exponent = cascade_exponents(
                        field, n, run, full, j, k, first, below, jump, earlier, rank, following,
                        w, 1, lead, True, permutation,
                    )  # fmt: skip
                else:
                    digits = numbers_in_group(field, n, run, full, j, k, w, lead, True)
                    escaped = spread_sign(digits + 0x71717171, permutation)  # 15 becomes 0x80
                    exponent = bytes_of(first) + digits
                lower = octet_of_words(exponent, rest, n, run, full, j, k, 8, 7, 8, 0, lead, True, 0, permutation)
                upper = octet_of_words(exponent, rest, n, run, full, j, k, 8, 7, 8, 0, lead, True, 1, permutation)
                if coding == LISTED:
                    lower = lower & ~escaped
                    upper = upper & ~escaped
                pair0, pair1 = pairs_of_words(lower, upper, permutation)
            word0 = pair0 << 16
            word1 = pair0 & 0xFFFF0000
            word2 = pair1 << 16
            word3 = pair1 & 0xFFFF0000
            for i in tl.static_range(4):
                word = word0 if i == 0 else (word1 if i == 1 else (word2 if i == 2 else word3))
                weight = word.to(tl.float32, bitcast=True)
                at = x + in_row * 256 + (4 * k + i) * (8 * lead) + j
                y0 = _add(y0, weight, at, 0, inputs)
                y1 = _add(y1, weight, at + columns, 1, inputs)
                y2 = _add(y2, weight, at + 2 * columns, 2, inputs)
                y3 = _add(y3, weight, at + 3 * columns, 3, inputs)
                y4 = _add(y4, weight, at + 4 * columns, 4, inputs)
                y5 = _add(y5, weight, at + 5 * columns, 5, inputs)
                y6 = _add(y6, weight, at + 6 * columns, 6, inputs)
                y7 = _add(y7, weight, at + 7 * columns, 7, inputs)
    out = y + ordinal(flat).to(tl.int64) * rows_per_block + in_block_flat
    for i in tl.static_range(inputs):
        total = y0 if i == 0 else (y1 if i == 1 else (y2 if i == 2 else (y3 if i == 3 else (
            y4 if i == 4 else (y5 if i == 5 else (y6 if i == 6 else y7))))))  # fmt: skip
        total = _sum(total)
        if coding == LISTED:
            total += _listed_products(
                frame, flat, in_block_flat, before, places, exponents, x + i * columns,
                columns, runs_per_block, exists, lead,
            )  # fmt: skip
        tl.store(out + i * all_rows, total, mask=exists)
