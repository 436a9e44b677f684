"""Triton kernels that multiply inputs with compressed rows of BF16, which no memory ever holds dense.

A block is whole rows, and a row whole runs. A program takes `rows` rows, which may be of several blocks, and `chunks`
runs of each at a time. It makes float32 of the words and adds their products with up to four inputs. A lane adds what
it sees in order; lanes are summed at the end. A sum depends on nothing but its row, its input and these two numbers.

From a cascade of the one tier (4) a few words in ten thousand escape. They count as zero at first. Their places and
exponents stand in a list, by which their products are added last. Other cascades look up what escapes, as when they are
decoded, so `resolve_kernel` runs first.

Each kernel multiplies `num_rows` rows of the blocks of `table`, `rows_per_block` of each but the last. `x` has the
inputs as float32, run by run, and in a run in the order in which a tile sees them (`arranged`); `y` has `all_rows`
numbers for each input.
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

__all__ = ["cascade_kernel", "dense_kernel", "enec_kernel", "listed_kernel"]

_jit: Callable[[Callable[..., Any]], Any] = triton.jit
_ESCAPES = tl.constexpr(8)  # that are read of a row at a time


@_jit
def _add(total: tl.tensor, weight: tl.tensor, x: tl.tensor, number: tl.constexpr, inputs: tl.constexpr) -> tl.tensor:
    """Add the product with input `number`, if there is one."""
    if number < inputs:
        total += weight * tl.load(x)
    return total


@_jit
def _accumulate(
    y0: tl.tensor, y1: tl.tensor, y2: tl.tensor, y3: tl.tensor, pair0: tl.tensor, pair1: tl.tensor, x: tl.tensor,
    columns: tl.int32, k: tl.constexpr, inputs: tl.constexpr, lead: tl.constexpr,
) -> Any:  # fmt: skip
    """Sums for up to four inputs, with the products of the four words of each lane in step `k` of its run."""
    for i in tl.static_range(4):
        pair = pair0 if i < 2 else pair1
        word = pair << 16 if i % 2 == 0 else pair & 0xFFFF0000
        weight = word.to(tl.float32, bitcast=True)
        at = x + (4 * k + i) * (8 * lead)
        y0 = _add(y0, weight, at, 0, inputs)
        y1 = _add(y1, weight, at + columns, 1, inputs)
        y2 = _add(y2, weight, at + 2 * columns, 2, inputs)
        y3 = _add(y3, weight, at + 3 * columns, 3, inputs)
    return y0, y1, y2, y3


@_jit
def _no_sums(rows: tl.constexpr, chunks: tl.constexpr, lead: tl.constexpr) -> Any:
    zero = tl.zeros([rows, chunks, 8 * lead], tl.float32)
    return zero, zero, zero, zero


@_jit
def _sum(y0: tl.tensor, y1: tl.tensor, y2: tl.tensor, y3: tl.tensor, number: tl.constexpr) -> tl.tensor:
    """The sum for input `number`, over lanes, then over the runs that stand side by side."""
    total = y0 if number == 0 else (y1 if number == 1 else (y2 if number == 2 else y3))
    return tl.sum(tl.sum(total, 2), 1)


@_jit
def _rows_of_program(
    table: tl.tensor, y: tl.tensor, num_rows: tl.int32, rows_per_block: tl.int32, rows: tl.constexpr
) -> Any:
    """For each row: the launch data of its block, its place there, whether it exists, and where its sum goes."""
    number = tl.program_id(0) * rows + tl.arange(0, rows)
    exists = number < num_rows
    number = tl.minimum(number, num_rows - 1)
    slot = number // rows_per_block
    in_block = number - slot * rows_per_block
    row = block_row(table, slot)
    return row, in_block, exists, y + ordinal(row).to(tl.int64) * rows_per_block + in_block


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
def dense_kernel(
    frame: tl.tensor, table: tl.tensor,
    x: tl.tensor, y: tl.tensor, num_rows: tl.int32, rows_per_block: tl.int32, columns: tl.int32, all_rows: tl.int32,
    inputs: tl.constexpr, lead: tl.constexpr, chunks: tl.constexpr, rows: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply with blocks that are words."""
    flat, in_block, exists, out = _rows_of_program(table, y, num_rows, rows_per_block, rows)
    row = flat[:, None, None]
    runs_per_row = columns >> 8
    rest = block_stream(frame, row)
    j = tl.arange(0, 8 * lead)[None, None, :]
    y0, y1, y2, y3 = _no_sums(rows, chunks, lead)
    for chunk in range(0, runs_per_row, chunks):
        in_row = chunk + tl.arange(0, chunks)[None, :, None]
        run = in_block[:, None, None] * runs_per_row + in_row
        for k in tl.static_range(8 // lead):
            at = rest + (run * 64 + 8 * lead * k + j) * 2
            pair0 = tl.load(at)
            pair1 = tl.load(at + 1)
            y0, y1, y2, y3 = _accumulate(
                y0, y1, y2, y3, pair0, pair1, x + in_row * 256 + j, columns, k, inputs, lead
            )  # fmt: skip
    for i in tl.static_range(inputs):
        total = _sum(y0, y1, y2, y3, i)
        tl.store(out + i * all_rows, total, mask=exists)


@_jit
def cascade_kernel(
    frame: tl.tensor, table: tl.tensor, before: tl.tensor, resolved: tl.tensor,
    x: tl.tensor, y: tl.tensor, num_rows: tl.int32, rows_per_block: tl.int32, columns: tl.int32, all_rows: tl.int32,
    widths: tl.constexpr, last: tl.constexpr, permutation: tl.constexpr,
    inputs: tl.constexpr, lead: tl.constexpr, chunks: tl.constexpr, rows: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply with cascades; what escapes from the first tier was resolved."""
    flat, in_block, exists, out = _rows_of_program(table, y, num_rows, rows_per_block, rows)
    row = flat[:, None, None]
    runs_per_row = columns >> 8
    n = num_words(row)
    rest = block_stream(frame, row)
    full = n * 0 + 256
    field = tier_stream(frame, row, 1, widths, 8, True)
    first, below, jump = interval(row, 1, widths)
    following = later_octets(resolved, tl.load(row + 7))
    if last == 1:
        following = tier_stream(frame, row, 2, widths, 8, True)
    j = tl.arange(0, 8 * lead)[None, None, :]
    y0, y1, y2, y3 = _no_sums(rows, chunks, lead)
    for chunk in range(0, runs_per_row, chunks):
        in_row = chunk + tl.arange(0, chunks)[None, :, None]
        run = in_block[:, None, None] * runs_per_row + in_row
        earlier = tl.load(before + ordinal(row) * rows_per_block * runs_per_row + run).to(tl.int32) & 0xFFFF
        counts = escapes_of_rows(field, n, run, full, j, j >= 0, widths & 15, lead, True)
        rank = ranks_in_run(counts, 2, 8 // lead)
        for k in tl.static_range(8 // lead):
            exponent = cascade_exponents(
                field, n, run, full, j, k, first, below, jump, earlier, rank, following,
                widths & 15, 1, lead, True, permutation,
            )  # fmt: skip
            lower = octet_of_words(exponent, rest, n, run, full, j, k, 8, 7, 8, 0, lead, True, 0, permutation)
            upper = octet_of_words(exponent, rest, n, run, full, j, k, 8, 7, 8, 0, lead, True, 1, permutation)
            pair0, pair1 = pairs_of_words(lower, upper, permutation)
            y0, y1, y2, y3 = _accumulate(
                y0, y1, y2, y3, pair0, pair1, x + in_row * 256 + j, columns, k, inputs, lead
            )  # fmt: skip
    for i in tl.static_range(inputs):
        total = _sum(y0, y1, y2, y3, i)
        tl.store(out + i * all_rows, total, mask=exists)


@_jit
def listed_kernel(
    frame: tl.tensor, table: tl.tensor, before: tl.tensor, places: tl.tensor, exponents: tl.tensor,
    x: tl.tensor, y: tl.tensor, num_rows: tl.int32, rows_per_block: tl.int32, columns: tl.int32, all_rows: tl.int32,
    widths: tl.constexpr, permutation: tl.constexpr,
    inputs: tl.constexpr, lead: tl.constexpr, chunks: tl.constexpr, rows: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply with cascades of the one tier (4) with lo up to 240; what escapes stands in a list."""
    flat, in_block, exists, out = _rows_of_program(table, y, num_rows, rows_per_block, rows)
    row = flat[:, None, None]
    runs_per_row = columns >> 8
    n = num_words(row)
    rest = block_stream(frame, row)
    full = n * 0 + 256
    field = tier_stream(frame, row, 1, widths, 8, True)
    first, _, _ = interval(row, 1, widths)
    j = tl.arange(0, 8 * lead)[None, None, :]
    y0, y1, y2, y3 = _no_sums(rows, chunks, lead)
    for chunk in range(0, runs_per_row, chunks):
        in_row = chunk + tl.arange(0, chunks)[None, :, None]
        run = in_block[:, None, None] * runs_per_row + in_row
        for k in tl.static_range(8 // lead):
            digits = numbers_in_group(field, n, run, full, j, k, widths & 15, lead, True)
            escaped = spread_sign(digits + 0x71717171, permutation)  # 15 becomes 0x80
            exponent = bytes_of(first) + digits
            lower = octet_of_words(exponent, rest, n, run, full, j, k, 8, 7, 8, 0, lead, True, 0, permutation)
            upper = octet_of_words(exponent, rest, n, run, full, j, k, 8, 7, 8, 0, lead, True, 1, permutation)
            pair0, pair1 = pairs_of_words(lower & ~escaped, upper & ~escaped, permutation)
            y0, y1, y2, y3 = _accumulate(
                y0, y1, y2, y3, pair0, pair1, x + in_row * 256 + j, columns, k, inputs, lead
            )  # fmt: skip
    for i in tl.static_range(inputs):
        total = _sum(y0, y1, y2, y3, i)
        total += _listed_products(
            frame, flat, in_block, before, places, exponents, x + i * columns,
            columns, rows_per_block * runs_per_row, exists, lead,
        )  # fmt: skip
        tl.store(out + i * all_rows, total, mask=exists)


@_jit
def enec_kernel(
    frame: tl.tensor, table: tl.tensor, before: tl.tensor, resolved: tl.tensor,
    x: tl.tensor, y: tl.tensor, num_rows: tl.int32, rows_per_block: tl.int32, columns: tl.int32, all_rows: tl.int32,
    quads_log2: tl.constexpr, m: tl.constexpr, nb: tl.constexpr, permutation: tl.constexpr,
    inputs: tl.constexpr, lead: tl.constexpr, chunks: tl.constexpr, rows: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply with blocks of enec; high parts were resolved."""
    flat, in_block, exists, out = _rows_of_program(table, y, num_rows, rows_per_block, rows)
    row = flat[:, None, None]
    runs_per_row = columns >> 8
    n = num_words(row)
    rest = block_stream(frame, row)
    full = n * 0 + 256
    field = rest + stream_nwords(n, 8, True)
    mask = field + stream_nwords(n, m, True)
    num_groups = (n + (4 << quads_log2) - 1) >> (2 + quads_log2)
    b = tl.load(row + 3) & 0xFF
    following = later_octets(resolved, tl.load(row + 7))
    j = tl.arange(0, 8 * lead)[None, None, :]
    y0, y1, y2, y3 = _no_sums(rows, chunks, lead)
    for chunk in range(0, runs_per_row, chunks):
        in_row = chunk + tl.arange(0, chunks)[None, :, None]
        run = in_block[:, None, None] * runs_per_row + in_row
        earlier = tl.load(before + ordinal(row) * rows_per_block * runs_per_row + run).to(tl.int32) & 0xFFFF
        flags, rank = mask_of_runs(mask, num_groups, run, full, j, 2, quads_log2, lead, True)
        for k in tl.static_range(8 // lead):
            exponent = enec_exponents(
                field, n, run, full, j, k, b, following, earlier, rank, flags, quads_log2, m, nb, 8, lead, True
            )
            lower = octet_of_words(exponent, rest, n, run, full, j, k, 8, 7, 8, 0, lead, True, 0, permutation)
            upper = octet_of_words(exponent, rest, n, run, full, j, k, 8, 7, 8, 0, lead, True, 1, permutation)
            pair0, pair1 = pairs_of_words(lower, upper, permutation)
            y0, y1, y2, y3 = _accumulate(
                y0, y1, y2, y3, pair0, pair1, x + in_row * 256 + j, columns, k, inputs, lead
            )  # fmt: skip
    for i in tl.static_range(inputs):
        total = _sum(y0, y1, y2, y3, i)
        tl.store(out + i * all_rows, total, mask=exists)
