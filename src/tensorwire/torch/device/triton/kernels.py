"""Triton kernels that decode blocks, and those that prepare it; the host's part is in decode.py.

A cascade is decoded from its last tier to its first, one launch a tier: `resolve_kernel` makes exponents of a later
tier's digits, a byte each, `cascade_words_kernel` words of tier 1 and the rest. enec's high parts become bytes, then
words. No program waits for another. How many escapes come before a run stands in tables that `count_kernel` fills when
the frame is opened, which also proves that no count leads out of a stream.

`frame`, at a multiple of 16 bytes, is all its bytes; `table` has the launch data of blocks (blocks.py); `runs` is
how many a program decodes at a time. `whole` is for blocks of full runs: `words` is then a multiple of 16 bytes too.
`lead` says how a tile is laid out (fields.py): the bits of the leading plane, or BY_GROUP.
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
    later_runs,
    mask_bits,
    mask_of_runs,
    num_words,
    numbers_in_tier,
    octet_of_words,
    ordinal,
    pairs_of_words,
    preceding_in_run,
    tier_stream,
)
from .fields import BY_GROUP, escapes_in, field_nwords, lanes, numbers_in_group, row_stride, stream_nwords

_jit: Callable[[Callable[..., Any]], Any] = triton.jit
_SEGMENT = tl.constexpr(1024)


@_jit
def copy_kernel(
    blocks: tl.tensor, table: tl.tensor, words: tl.tensor, first_block: tl.int32, block_nwords: tl.int32,
    word_nbytes: tl.constexpr, constant: tl.constexpr,
) -> None:  # fmt: skip
    """Copy words, or fill with one: of a constant block, numbers 3 and 4 of the launch data are 8 bytes of such words.
    `words` is 32-bit ones, of which a full block has `block_nwords`."""
    row = block_row(table, tl.program_id(0))
    n = (num_words(row) * word_nbytes + 3) >> 2
    source = block_stream(blocks, row)
    target = words + (ordinal(row) - first_block).to(tl.int64) * block_nwords
    for start in range(0, n, _SEGMENT):
        i = start + tl.arange(0, _SEGMENT)
        if constant:
            # Not one load at row + 3 + (i & 1), which NPUs do number by number.
            values = tl.where((i & 1) == 0, tl.load(row + 3), tl.load(row + 4)).to(tl.uint32, bitcast=True)
        else:
            values = tl.load(source + i, mask=i < n, other=0)
        tl.store(target + i, values, mask=i < n)


@_jit
def _tile(
    start: tl.tensor, runs: tl.constexpr, count: tl.tensor, lane: tl.tensor, lead: tl.constexpr, whole: tl.constexpr
) -> Any:
    """A tile from run `start` on: its runs, how many numbers each has, the words between two rows, j."""
    run, in_run = _runs_from(start, runs, count, lead)
    stride = row_stride(in_run, lead, whole)
    j = lane if whole else tl.minimum(lane, stride - 1)
    return run, in_run, stride, j


@_jit
def _runs_from(start: tl.tensor, runs: tl.constexpr, count: tl.tensor, lead: tl.constexpr) -> Any:
    """`runs` runs of a stream of `count` numbers, and how many numbers each has. Where there are no more runs, the last
    one is repeated. By group the last `runs` of them are taken instead; if there are fewer, some do not exist."""
    num_runs = (count + 255) >> 8
    if lead == BY_GROUP:
        run = tl.maximum(tl.minimum(start, num_runs - runs), 0) + tl.arange(0, runs)[:, None]
        in_run = tl.maximum(tl.minimum(count - run * 256, 256), 1)
    else:
        run = tl.minimum((start + tl.arange(0, runs))[:, None], num_runs - 1)
        in_run = tl.minimum(count - run * 256, 256)
    return run, in_run


@_jit
def _store_by_run(at: tl.tensor, values: tl.tensor, run: tl.tensor, count: tl.tensor, lead: tl.constexpr) -> None:
    if lead == BY_GROUP:
        tl.store(at, values, mask=run < ((count + 255) >> 8))
    else:
        tl.store(at, values)


@_jit
def _store_octets(
    target: tl.tensor, octets: tl.tensor, run: tl.tensor, count: tl.tensor, lane: tl.tensor, stride: tl.tensor,
    k: tl.constexpr, lead: tl.constexpr,
) -> None:  # fmt: skip
    """Row k of resolved exponents. A run has 64 words of memory, as by group are written of a short one too."""
    if lead == BY_GROUP:
        _store_by_run(target + run * 64 + lane, octets, run, count, lead)
    else:
        tl.store(target + run * 64 + stride * k + lane, octets, mask=lane < stride)


# Preparation ----------------------------------------------------------------------------------------------------------


@_jit
def count_kernel(
    frame: tl.tensor, table: tl.tensor, counts: tl.tensor, runs_per_block: tl.int32,
    rest_bits: tl.constexpr, widths: tl.constexpr, tier: tl.constexpr, lead: tl.constexpr, runs: tl.constexpr,
) -> None:  # fmt: skip
    """How many digits of a run escape; tier 1 has `runs_per_block` entries a block, later tiers those of later runs."""
    w: tl.constexpr = (widths >> (4 * tier - 4)) & 15
    row = block_row(table, tl.program_id(0))
    count = numbers_in_tier(row, tier)
    field = tier_stream(frame, row, tier, widths, rest_bits, False)
    first = ordinal(row) * runs_per_block if tier == 1 else later_runs(row, tier)
    lane = tl.arange(0, 8 * lead)[None, :]
    for start in range(0, (count + 255) >> 8, runs):
        run, in_run, stride, j = _tile(start, runs, count, lane, lead, False)
        escaped = (run + j) * 0
        for k in tl.static_range(8 // lead):
            digits = numbers_in_group(field, count, run, in_run, j, k, w, lead, False)
            escaped += ((escapes_in(digits, w) * 0x01010101) >> 24).to(tl.int32)
        escaped = tl.where(lane < stride, escaped, 0)
        _store_by_run(counts + first + run, tl.sum(escaped, 1, keep_dims=True), run, count, lead)


@_jit
def count_mask_kernel(
    frame: tl.tensor, table: tl.tensor, counts: tl.tensor, runs_per_block: tl.int32,
    rest_bits: tl.constexpr, m: tl.constexpr, quads_log2: tl.constexpr, lead: tl.constexpr, runs: tl.constexpr,
) -> None:  # fmt: skip
    """How many of enec's mask bits of a run are set."""
    row = block_row(table, tl.program_id(0))
    n = num_words(row)
    mask = block_stream(frame, row) + field_nwords(n, rest_bits) + field_nwords(n, m)
    num_groups = (n + (4 << quads_log2) - 1) >> (2 + quads_log2)
    for start in range(0, (n + 255) >> 8, runs):
        run, _ = _runs_from(start, runs, n, lead)
        number = tl.arange(0, 64 >> quads_log2)[None, :]
        bits = mask_bits(mask, num_groups, run, number, run >= 0, quads_log2, lead)
        total = tl.sum(bits.to(tl.int32), 1, keep_dims=True)
        _store_by_run(counts + ordinal(row) * runs_per_block + run, total, run, n, lead)


# Later tiers and high parts -------------------------------------------------------------------------------------------


@_jit
def resolve_kernel(
    frame: tl.tensor, table: tl.tensor, before: tl.tensor, resolved: tl.tensor,
    rest_bits: tl.constexpr, widths: tl.constexpr, tier: tl.constexpr, last: tl.constexpr, lead: tl.constexpr,
    runs: tl.constexpr,
) -> None:  # fmt: skip
    """The exponents of the words that escape to tier `tier`, 2 or more; those that it escapes are resolved already, or
    bytes if it is the last one. `before` and `resolved` are of later runs."""
    w: tl.constexpr = (widths >> (4 * tier - 4)) & 15
    row = block_row(table, tl.program_id(0))
    count = numbers_in_tier(row, tier)
    field = tier_stream(frame, row, tier, widths, rest_bits, False)
    first_run = later_runs(row, tier)
    if tier == last:
        following = tier_stream(frame, row, tier + 1, widths, rest_bits, False)
    else:
        following = later_octets(resolved, later_runs(row, tier + 1))
    first, below, jump = interval(row, tier, widths)
    target = later_octets(resolved, first_run)
    lane = tl.arange(0, 8 * lead)[None, :]
    for start in range(tl.program_id(1) * runs, (count + 255) >> 8, tl.num_programs(1) * runs):
        run, in_run, stride, j = _tile(start, runs, count, lane, lead, False)
        counts = escapes_of_rows(field, count, run, in_run, j, lane < stride, w, lead, False)
        preceding = preceding_in_run(counts, 8 // lead)
        exists = run < ((count + 255) >> 8)
        earlier = tl.load(before + first_run + run, mask=exists, other=0).to(tl.int32) & 0xFFFF
        for k in tl.static_range(8 // lead):
            x = cascade_exponents(
                field, count, run, in_run, j, k, first, below, jump, earlier, preceding, following,
                w, tier, lead, False,
            )  # fmt: skip
            _store_octets(target, x, run, count, lane, stride, k, lead)


@_jit
def high_kernel(
    frame: tl.tensor, table: tl.tensor, resolved: tl.tensor,
    rest_bits: tl.constexpr, m: tl.constexpr, high_bits: tl.constexpr, quads_log2: tl.constexpr, lead: tl.constexpr,
    runs: tl.constexpr,
) -> None:  # fmt: skip
    """enec's high parts as bytes."""
    row = block_row(table, tl.program_id(0))
    n = num_words(row)
    count = numbers_in_tier(row, 2)
    field = block_stream(frame, row) + field_nwords(n, rest_bits) + field_nwords(n, m)
    field += field_nwords((n + (4 << quads_log2) - 1) >> (2 + quads_log2), 1)
    target = later_octets(resolved, tl.load(row + 7))
    lane = tl.arange(0, 8 * lead)[None, :]
    for start in range(tl.program_id(1) * runs, (count + 255) >> 8, tl.num_programs(1) * runs):
        run, in_run, stride, j = _tile(start, runs, count, lane, lead, False)
        for k in tl.static_range(8 // lead):
            high = numbers_in_group(field, count, run, in_run, j, k, high_bits, lead, False)
            _store_octets(target, high, run, count, lane, stride, k, lead)


# Words ----------------------------------------------------------------------------------------------------------------


@_jit
def _words_of_block(
    words: tl.tensor, row: tl.tensor, first_block: tl.int32, runs_per_block: tl.int32, word_bits: tl.constexpr
) -> tl.tensor:
    """Where the words of a block go: `words` is 64-bit ones, or 32-bit ones if that is four words."""
    in_run: tl.constexpr = 128 if word_bits == 32 else 64
    return words + (ordinal(row) - first_block).to(tl.int64) * (runs_per_block * in_run)


@_jit
def _store_group(
    words: tl.tensor, x: tl.tensor, rest: tl.tensor, count: tl.tensor, run: tl.tensor, in_run: tl.tensor,
    j: tl.tensor, k: tl.constexpr, exists: tl.tensor, exponent_bits: tl.constexpr, mantissa_bits: tl.constexpr,
    rest_bits: tl.constexpr, trail: tl.constexpr, lead: tl.constexpr, whole: tl.constexpr,
) -> None:  # fmt: skip
    """Join four exponents with the rest. `exists` says which lanes do; the last group is stored whole."""
    nbytes: tl.constexpr = (exponent_bits + mantissa_bits + 1) // 8
    g = row_stride(in_run, lead, whole) * k + j
    exists = exists & (g * 4 < in_run)
    byte0 = octet_of_words(
        x, rest, count, run, in_run, j, k, exponent_bits, mantissa_bits, rest_bits, trail, lead, whole, 0
    )
    if nbytes == 1:
        _store(words + run * 64 + g, byte0, exists, whole)
    else:
        target = words + (run * 64 + g) * (nbytes // 2)
        byte1 = octet_of_words(
            x, rest, count, run, in_run, j, k,
            exponent_bits, mantissa_bits, rest_bits, trail, lead, whole, 1,
        )  # fmt: skip
        first, second = pairs_of_words(byte0, byte1)
        if nbytes == 4:
            byte2 = octet_of_words(
                x, rest, count, run, in_run, j, k,
                exponent_bits, mantissa_bits, rest_bits, trail, lead, whole, 2,
            )  # fmt: skip
            byte3 = octet_of_words(
                x, rest, count, run, in_run, j, k,
                exponent_bits, mantissa_bits, rest_bits, trail, lead, whole, 3,
            )  # fmt: skip
            upper_first, upper_second = pairs_of_words(byte2, byte3)
            last = _concatenated((second & 0xFFFF) | (upper_second << 16), (second >> 16) | (upper_second & 0xFFFF0000))
            _store(target + 1, last, exists, whole)
            first, second = (first & 0xFFFF) | (upper_first << 16), (first >> 16) | (upper_first & 0xFFFF0000)
        _store(target, _concatenated(first, second), exists, whole)


@_jit
def _concatenated(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    return low.to(tl.uint64) | (high.to(tl.uint64) << 32)


@_jit
def _store(at: tl.tensor, values: tl.tensor, exists: tl.tensor, whole: tl.constexpr) -> None:
    if whole:
        tl.store(at, values)
    else:
        tl.store(at, values, mask=exists)


@_jit
def cascade_words_kernel(
    frame: tl.tensor, table: tl.tensor, before: tl.tensor, resolved: tl.tensor, words: tl.tensor,
    first_block: tl.int32, runs_per_block: tl.int32, exponent_bits: tl.constexpr, mantissa_bits: tl.constexpr,
    rest_bits: tl.constexpr, trail: tl.constexpr, widths: tl.constexpr, last: tl.constexpr, whole: tl.constexpr,
    lead: tl.constexpr, runs: tl.constexpr,
) -> None:  # fmt: skip
    """Words of tier 1, of the exponents that escape from it, and of the rest. `before` is of tier 1."""
    w: tl.constexpr = widths & 15
    row = block_row(table, tl.program_id(0))
    n = num_words(row)
    rest = block_stream(frame, row)
    field = tier_stream(frame, row, 1, widths, rest_bits, whole)
    following = later_octets(resolved, tl.load(row + 7))
    if last == 1:
        following = tier_stream(frame, row, 2, widths, rest_bits, whole)
    first_run = ordinal(row).to(tl.int64) * runs_per_block
    target = _words_of_block(words, row, first_block, runs_per_block, exponent_bits + mantissa_bits + 1)
    lane = lanes(lead, (exponent_bits + mantissa_bits + 1) // 8)
    run, in_run, stride, j = _tile(tl.program_id(1) * runs, runs, n, lane, lead, whole)
    exists = lane < stride
    first, below, jump = interval(row, 1, widths)
    earlier = tl.load(before + first_run + run).to(tl.int32) & 0xFFFF
    counts = escapes_of_rows(field, n, run, in_run, j, exists, w, lead, whole)
    preceding = preceding_in_run(counts, 8 // lead)
    for k in tl.static_range(8 // lead):
        x = cascade_exponents(
            field, n, run, in_run, j, k, first, below, jump, earlier, preceding, following,
            w, 1, lead, whole,
        )  # fmt: skip
        _store_group(
            target, x, rest, n, run, in_run, j, k, exists,
            exponent_bits, mantissa_bits, rest_bits, trail, lead, whole,
        )  # fmt: skip


@_jit
def enec_words_kernel(
    frame: tl.tensor, table: tl.tensor, before: tl.tensor, resolved: tl.tensor, words: tl.tensor,
    first_block: tl.int32, runs_per_block: tl.int32, exponent_bits: tl.constexpr, mantissa_bits: tl.constexpr,
    rest_bits: tl.constexpr, trail: tl.constexpr, quads_log2: tl.constexpr, m: tl.constexpr, nb: tl.constexpr,
    whole: tl.constexpr, lead: tl.constexpr, runs: tl.constexpr,
) -> None:  # fmt: skip
    """Words of enec; 4 << `quads_log2` words share a mask bit. `before` counts the mask bits before a run."""
    row = block_row(table, tl.program_id(0))
    n = num_words(row)
    rest = block_stream(frame, row)
    low_field = rest + stream_nwords(n, rest_bits, whole)
    mask = low_field + stream_nwords(n, m, whole)
    num_groups = (n + (4 << quads_log2) - 1) >> (2 + quads_log2)
    high_parts = later_octets(resolved, tl.load(row + 7))
    first_run = ordinal(row).to(tl.int64) * runs_per_block
    target = _words_of_block(words, row, first_block, runs_per_block, exponent_bits + mantissa_bits + 1)
    lane = lanes(lead, (exponent_bits + mantissa_bits + 1) // 8)
    run, in_run, stride, j = _tile(tl.program_id(1) * runs, runs, n, lane, lead, whole)
    exists = lane < stride
    b = tl.load(row + 3) & 0xFF
    earlier = tl.load(before + first_run + run).to(tl.int32) & 0xFFFF
    flags, preceding = mask_of_runs(mask, num_groups, run, in_run, lane, quads_log2, lead, whole)
    for k in tl.static_range(8 // lead):
        x = enec_exponents(
            low_field, n, run, in_run, j, k, b, high_parts, earlier, preceding, flags,
            quads_log2, m, nb, exponent_bits, lead, whole,
        )  # fmt: skip
        _store_group(
            target, x, rest, n, run, in_run, j, k, exists,
            exponent_bits, mantissa_bits, rest_bits, trail, lead, whole,
        )  # fmt: skip
