"""The rows of a frame as thin_cascade.cuh wants them: in cascades, with a table of each block's later tiers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from .plan import RUN, CascadeLaunch, counts_of, field_nbytes, room_nbytes
from .rows import LATER_TIERS_NBYTES, Cascades, Rows

if TYPE_CHECKING:
    from .cuda_kernels import CudaKernels
    from .plan import Array
    from .planned import PlannedFrame

MOST_WIDTH = 4
"""The most bits that a digit has."""
_TABLE_WORDS = LATER_TIERS_NBYTES // 4
_HEAD_WORDS, _TIER_WORDS = 8, 8  # of LaterTiers, and LaterTier of thin_cascade.cuh
_ALIGNMENT = 16


class _Words(NamedTuple):
    """The words of a dtype: bits of a mantissa, and of an exponent; the planes of a rest, by their bits and the lowest
    of these in the rest."""

    mantissa_bits: int
    exponent_bits: int
    rest_planes: tuple[tuple[int, int], ...]


_WORDS = {torch.bfloat16: _Words(7, 8, ((8, 0),)), torch.float16: _Words(10, 5, ((8, 0), (2, 8), (1, 10)))}


def width_of(held: PlannedFrame) -> int | None:
    """The width of tier 1 that most blocks have, among those in cascades that can be multiplied."""
    blocks: dict[int, int] = {}
    for launch, rows in _fitting(held):
        blocks[launch.widths[0]] = blocks.get(launch.widths[0], 0) + len(rows)
    return max(blocks, key=lambda width: blocks[width], default=None)


def _fitting(held: PlannedFrame) -> list[tuple[CascadeLaunch, Array]]:
    rest = held.info.layout.rest_bits, 0
    return [
        (launch, rows)
        for launch, rows in held.plan.rows.items()
        if isinstance(launch, CascadeLaunch) and launch[:2] == rest and launch.whole
    ]


def rows_of_cascades(held: PlannedFrame, kernels: CudaKernels, width: int) -> tuple[Rows, Array]:
    """The rows of the blocks whose tier 1 has this width, and of each of them the block, by ordinal."""
    columns = held.info.shape[-1]
    launches = [(launch, rows) for launch, rows in _fitting(held) if launch.widths[0] == width]
    rest_bits = held.info.layout.rest_bits
    parts = [_later_tiers(rows, rest_bits, launch.widths) for launch, rows in launches]
    order = np.concatenate([rows[:, 1] for _, rows in launches]).argsort(kind="stable")
    rows = np.concatenate([rows for _, rows in launches])[order].astype(np.int64)
    places = held.frame.data_ptr() + rows[:, 0] * 32
    befores = kernels.before.data_ptr() + rows[:, 1] * held.runs_per_block * 2
    tables = np.concatenate([each for each, _, _ in parts])[order]
    tables.view(np.int64)[:, 0] += places
    tables.view(np.int64)[:, 1] += kernels.before_later.data_ptr()
    sizes = max(slot for _, slot, _ in parts), max(scratch for _, _, scratch in parts)
    later = max(len(launch.widths) for launch, _ in launches) - 1
    kept = held.frame, kernels.before, kernels.before_later
    out = _rows(held.dtype, width, later, columns, rows[:, 2], places, befores, tables, sizes, kept)
    return out, np.repeat(rows[:, 1], rows[:, 2] // columns)


def _rows(
    dtype: torch.dtype, width: int, later: int, columns: int, num_words: Array, places: Array, befores: Array,
    tables: Array, sizes: tuple[int, int], kept: tuple[torch.Tensor, ...],
) -> Rows:  # fmt: skip
    """From arrays by block: the number of words, addresses of the block and of its counts, and LaterTiers."""
    device = kept[0].device
    on_device = torch.from_numpy(tables.view(np.int32)).to(device)
    addresses = on_device.data_ptr() + np.arange(len(tables)) * (_TABLE_WORDS * 4)
    rows = num_words // columns
    in_block = np.arange(rows.sum()) - np.repeat(rows.cumsum() - rows, rows)
    first = in_block * columns
    table = np.empty((len(first), 4), np.int64)
    table[:, 0] = np.repeat(places, rows) + first
    table[:, 1] = np.repeat(befores, rows) + first // RUN * 2
    table[:, 2] = np.repeat(addresses, rows)
    table[:, 3] = np.repeat(num_words, rows) | first << 32
    cascades = Cascades(dtype, width, later, *sizes, rows, addresses, (on_device,))
    return Rows(torch.from_numpy(table).to(device), columns, (*kept, on_device), cascades)


def _later_tiers(rows: Array, rest_bits: int, widths: tuple[int, ...]) -> tuple[Array, int, int]:
    """LaterTiers of blocks, whose addresses count from the block and from the first later run of all; and the most
    bytes that a block has in a place of its own, and while it is resolved."""
    num_words, params, counts = rows[:, 2].astype(np.int64), rows[:, 3].astype(np.int64), counts_of(rows)
    last = len(widths)
    fields = [field_nbytes(counts[:, k], w) for k, w in enumerate((*widths[1:], 8))]
    begins = np.cumsum([np.zeros(len(rows), np.int64), *fields], 0)
    names = _names(params, widths)
    table = np.zeros((len(rows), _TABLE_WORDS), np.uint32)
    table.view(np.int64)[:, 0] = num_words // 8 * (rest_bits + widths[0])
    table.view(np.int64)[:, 1] = rows[:, 7].astype(np.int64) * 2
    table[:, 4], table[:, 5] = begins[-1] // 4, last - 1
    table[:, 6], table[:, 7] = names[0].T
    places = [room_nbytes(begins[-1])]  # where the exponents of the tiers from the third on go
    for k in range(1, last - 1):
        places.append(places[-1] + room_nbytes(counts[:, k]))
    run = np.zeros(len(rows), np.int64)
    for k in range(last - 1):
        following = begins[last - 1] if k == last - 2 else places[k]
        target = places[k - 1] if k else 0
        tier = table[:, _HEAD_WORDS + _TIER_WORDS * k :]
        for column, values in enumerate((begins[k], counts[:, k], following, target, widths[k + 1], run)):
            tier[:, column] = values
        tier[:, 6], tier[:, 7] = names[k + 1].T
        run = run + (counts[:, k] + (RUN - 1) >> 8)
    slots = room_nbytes(counts[:, 0] if last > 1 else begins[-1])
    return table, int(slots.max()), int(places[-1].max()) if last > 1 else 0


def _names(params: Array, widths: tuple[int, ...]) -> list[Array]:
    """By tier: what its digits name, four bytes and four more, for each block."""
    begin = end = params & 0xFF
    names = []
    for tier, w in enumerate(widths):
        named, jump = (1 << w) - 1, end - begin
        below = params >> 4 * (tier + 1) & 15 if tier else np.zeros_like(params)
        begin = begin - below
        end = begin + jump + named
        digits = np.arange(8)
        each = begin[:, None] + digits + (digits >= below[:, None]) * jump[:, None]
        if w in (1, 4):  # where kernels add a digit to the first name, or know it to be that
            each = np.tile(each[:, :1], 8)
        names.append((each & 0xFF).astype(np.uint8).view("<u4"))
    return names


def coded_in_one_tier(words: torch.Tensor, width: int) -> Rows:
    """The rows of dense BF16 or F16, (rows, columns), made by the host: each is a block of its own whose only tier has
    this width, behind which what escapes stands in bytes."""
    num_rows, columns = words.shape
    mantissa_bits, exponent_bits, rest_planes = _WORDS[words.dtype]
    numbers = words.view(torch.int16).cpu().numpy().astype(np.int64)
    exponents, named = numbers >> mantissa_bits & (1 << exponent_bits) - 1, (1 << width) - 1
    rests = numbers & (1 << mantissa_bits) - 1 | (numbers >> 15 & 1) << mantissa_bits
    each = np.arange(num_rows)[:, None]
    sums = np.bincount((exponents + 256 * each).ravel(), minlength=256 * num_rows).reshape(num_rows, 256).cumsum(1)
    within = sums[:, named - 1 :] - np.pad(sums, ((0, 0), (1, 0)))[:, : 257 - named]
    lows = within.argmax(1)
    digits = exponents - lows[:, None]
    escaped = (digits < 0) | (digits >= named)
    digits[escaped] = named
    of_digits = ((2, 0), (1, 2)) if width == 3 else ((width, 0),)
    planes = []
    for field, p, shift in [(rests, *each) for each in rest_planes] + [(digits, *each) for each in of_digits]:
        bits = (field >> shift & (1 << p) - 1).reshape(num_rows, -1, 8 // p, 32 * p)
        planes.append((bits << p * np.arange(8 // p)[:, None]).sum(2).reshape(num_rows, -1))
    coded = np.concatenate(planes, 1).astype(np.uint8)
    counts = escaped.reshape(num_rows, -1, RUN).sum(2)
    totals = counts.sum(1)
    begins = np.append(0, (totals + (_ALIGNMENT - 1) & -_ALIGNMENT).cumsum())
    following = np.zeros(begins[-1] + _ALIGNMENT, np.uint8)
    for row, (begin, end) in enumerate(pairwise(begins)):
        following[begin:end][: totals[row]] = exponents[row][escaped[row]]
    before = (counts.cumsum(1) - counts).astype(np.uint16)
    kept = tuple(torch.from_numpy(array).to(words.device) for array in (coded, before.view(np.int16), following))
    tables = np.zeros((num_rows, _TABLE_WORDS), np.uint32)
    tables.view(np.int64)[:, 0] = kept[2].data_ptr() + begins[:-1]
    tables[:, 4] = totals + 3 >> 2
    tables[:, 6:8] = _names(lows, (width,))[0]
    places = kept[0].data_ptr() + each[:, 0] * coded.shape[1]
    befores = kept[1].data_ptr() + each[:, 0] * before.strides[0]
    sizes = int(room_nbytes(totals).max()), 0
    return _rows(words.dtype, width, 0, columns, np.full(num_rows, columns), places, befores, tables, sizes, kept)
