"""The rows of a frame as products want them. In tier shape (4) they have a list of what escapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ...codec import Layout
from .plan import LISTED, ROW, RUN, CascadeLaunch, counts_of
from .product_cascades import coded_in_one_tier, rows_of_cascades, width_of
from .rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cuda_kernels import CudaKernels
    from .driver import Driver
    from .plan import Array
    from .planned import PlannedFrame

_LAYOUTS = {torch.bfloat16: Layout(2, 8, 8, "float", True), torch.float16: Layout(2, 5, 11, "float", True)}
_LISTED = CascadeLaunch(8, 0, LISTED, True)
_MOST_LO = 240  # the kernel adds digits to it in bytes
_NAMED = 15  # exponents
_MOST_COLUMNS = 0xFFFF
_OTHERS_SHARE = 8
"""At most one word in so many may be in blocks of other kinds."""
_LEAST_ARCHITECTURE = 80  # whose tensor cores take BF16, and 16 numbers of F16 at once
_OVERREAD = 2  # entries behind a list


class _ListedBlocks(NamedTuple):
    """Blocks in tier shape (4). By block: the ordinal, the number of words, addresses of rests, of counts of escapes
    before each run and of the list, lo, and how many words escape."""

    ordinals: Array
    num_words: Array
    rests: Array
    befores: Array
    lists: Array
    lows: Array
    escapes: Array
    kept: tuple[torch.Tensor, ...]


def rows_of(held: PlannedFrame, kernels: CudaKernels, driver: Driver) -> Rows | None:
    """The rows of a frame's tensor; None if there is no fused product with it.

    There is one for BF16 in two or three dimensions, with a multiple of 256 columns, in blocks of whole rows, where
    nearly all blocks are in tier shape (4), as profile `resident` makes them; and, in two dimensions, where nearly all
    are in cascades whose tier 1 has one width, as profile `fast` makes them. For F16 there is the latter alone, which
    serves `resident` too. The few blocks that are not such are decoded and made so now: they take memory of their own,
    with (4) 1.5 bytes a word and 2 for each that escapes.
    """
    info = held.info
    if (
        driver.architecture < _LEAST_ARCHITECTURE
        or info.layout != _LAYOUTS.get(held.dtype)
        or len(info.shape) not in (2, 3)
        or 0 in info.shape
        or info.shape[-1] % RUN
        or info.shape[-1] > _MOST_COLUMNS
        or info.block_words % info.shape[-1]
    ):
        return None
    found = _rows_of_lists(held, kernels) or _rows_of_cascades(held, kernels, driver)
    if found is not None:
        _wait(found.table)
    return found


def _rows_of_lists(held: PlannedFrame, kernels: CudaKernels) -> Rows | None:
    if held.dtype != torch.bfloat16:
        return None
    listed = held.plan.rows.get(_LISTED, np.zeros((0, ROW), np.uint32))
    listed = listed[listed[:, 3] & 0xFF <= _MOST_LO]
    others = _others(held, listed[:, 1])
    if others is None:
        return None
    blocks, columns = _listed(held, kernels, listed), held.info.shape[-1]
    rows = Rows(_table(blocks, columns), columns, blocks.kept)
    ordinals = np.repeat(blocks.ordinals, blocks.num_words // columns)
    return _with_others(held, rows, ordinals, others, lambda: coded_with_lists(_decoded(held, kernels, others)))


def _rows_of_cascades(held: PlannedFrame, kernels: CudaKernels, driver: Driver) -> Rows | None:
    width = width_of(held)
    if width is None or len(held.info.shape) != 2:
        return None
    rows, ordinals = rows_of_cascades(held, kernels, width)
    others = _others(held, np.unique(ordinals))
    if others is None:
        return None
    found = _with_others(
        held, rows, ordinals, others, lambda: coded_in_one_tier(_decoded(held, kernels, others), width)
    )
    blocks = found.cascades
    return found if blocks is not None and blocks.least_nbytes <= driver.shared_nbytes else None


def _others(held: PlannedFrame, ordinals: Array) -> Array | None:
    """The blocks that are not these; None if they are too many."""
    others = np.setdiff1d(np.arange(held.info.num_blocks), ordinals)
    return None if len(others) * _OTHERS_SHARE > held.info.num_blocks else others


def _with_others(held: PlannedFrame, rows: Rows, ordinals: Array, others: Array, make: Callable[[], Rows]) -> Rows:
    """The rows of all blocks, in order: `rows`, whose blocks are `ordinals`, and those that `make` makes of others."""
    if not len(others):
        return rows
    made, numbers = make(), np.concatenate([ordinals, _rows_in(held, others)])
    order = numbers.argsort(kind="stable")
    table = torch.cat([rows.table, made.table])[held.to_device(torch.from_numpy(order))]
    cascades = None
    if rows.cascades is not None and made.cascades is not None:
        cascades = rows.cascades.joined(made.cascades)
        by_row = numbers[cascades.rows.cumsum() - cascades.rows].argsort(kind="stable")
        cascades = cascades._replace(rows=cascades.rows[by_row], addresses=cascades.addresses[by_row])
    return Rows(table, rows.columns, (*rows.kept, *made.kept), cascades)


def _num_words(held: PlannedFrame, ordinals: Array) -> Array:
    info = held.info
    nwords: Array = np.minimum(info.block_words, info.uncompressed_nbytes // 2 - ordinals * info.block_words)
    return nwords


def _rows_in(held: PlannedFrame, ordinals: Array) -> Array:
    """The block of each row of some blocks."""
    return np.repeat(ordinals, _num_words(held, ordinals) // held.info.shape[-1])


def _decoded(held: PlannedFrame, kernels: CudaKernels, ordinals: Array) -> torch.Tensor:
    """The rows of some blocks."""
    parts = [
        torch.empty(int(count), dtype=torch.int16, device=held.frame.device) for count in _num_words(held, ordinals)
    ]
    for ordinal, part in zip(ordinals.tolist(), parts, strict=True):
        kernels.decode(ordinal, ordinal + 1, part)
    return torch.cat(parts).view(held.dtype).view(-1, held.info.shape[-1])


def _wait(tensor: torch.Tensor) -> None:
    """For all that was launched so far: products may run on another stream."""
    tensor[-1, -1].item()


def _listed(held: PlannedFrame, kernels: CudaKernels, rows: Array) -> _ListedBlocks:
    """Blocks of the frame itself, of which lists are made."""
    entries = kernels.list_escapes(_LISTED, exponents=True, overread=_OVERREAD)
    ordinals = rows[:, 1].astype(np.int64)
    return _ListedBlocks(
        ordinals,
        rows[:, 2].astype(np.int64),
        held.frame.data_ptr() + rows[:, 0].astype(np.int64) * 32,
        kernels.before.data_ptr() + ordinals * held.runs_per_block * 2,
        entries.data_ptr() + rows[:, 7].astype(np.int64) * 2,
        rows[:, 3].astype(np.int64) & 0xFF,
        counts_of(rows)[:, 0],
        (held.frame, kernels.before, entries),
    )


def coded_with_lists(words: torch.Tensor) -> Rows:
    """The rows of dense BF16, (rows, columns), with at most 65,535 columns: coded like those of a frame, each with a lo
    of its own. They are not waited for."""
    num_rows, columns = words.shape
    device, runs = words.device, columns // RUN
    numbers = words.contiguous().view(torch.int16).to(torch.int32)
    exponents = numbers >> 7 & 0xFF
    rows = torch.arange(num_rows, device=device)[:, None]
    sums = torch.bincount((exponents + 256 * rows).view(-1), minlength=256 * num_rows).view(num_rows, 256).cumsum(1)
    within = sums[:, _NAMED - 1 : _NAMED + _MOST_LO].clone()
    within[:, 1:] -= sums[:, :_MOST_LO]
    lows = within.argmax(1, keepdim=True)
    digits = exponents - lows
    escaped = (digits < 0) | (digits >= _NAMED)
    digits[escaped] = _NAMED
    halves = digits.view(num_rows, runs, 2, RUN // 2)
    packed = (halves[:, :, 0] | halves[:, :, 1] << 4).view(num_rows, -1)
    coded = torch.cat([numbers >> 8 & 0x80 | numbers & 0x7F, packed], 1).to(torch.uint8)
    counts = escaped.view(num_rows, runs, RUN).sum(2)
    ends = counts.cumsum(1)
    in_run = torch.arange(columns, device=device) & RUN - 1
    entries = (in_run << 8 | exponents)[escaped].to(torch.int16)
    entries = torch.cat([entries, entries.new_zeros(_OVERREAD)])
    before = (ends - counts).to(torch.int16)
    lists = ends[:, -1].cumsum(0) - ends[:, -1]
    table = torch.stack(
        [
            coded.data_ptr() + rows[:, 0] * coded.stride(0),
            before.data_ptr() + rows[:, 0] * (2 * runs),
            entries.data_ptr() + lists * 2,
            columns | lows[:, 0] << 32 | ends[:, -1] << 40,
        ],
        1,
    )
    return Rows(table, columns, (coded, before, entries))


def _table(blocks: _ListedBlocks, columns: int) -> torch.Tensor:
    """RowAt of thin.cuh for each row of the blocks, in their order."""
    rows = blocks.num_words // columns
    first = np.repeat(rows.cumsum() - rows, rows)
    in_block = np.arange(len(first)) - first

    def each(values: Array) -> Array:
        return np.repeat(values, rows)

    table = np.empty((len(first), 4), np.int64)
    table[:, 0] = each(blocks.rests) + in_block * columns
    table[:, 1] = each(blocks.befores) + in_block * (columns // RUN * 2)
    table[:, 2] = each(blocks.lists)
    table[:, 3] = each(blocks.num_words) - in_block * (columns // 2) | each(blocks.lows) << 32
    # How many escape before the row's end is known on the device only, but for the block's last row.
    before = blocks.kept[1]
    ends = (table[:, 1] - before.data_ptr()) // 2 + columns // RUN
    is_last = in_block == each(rows) - 1
    ends[is_last] = 0
    known = torch.from_numpy(np.where(is_last, each(blocks.escapes), -1)).to(before.device)
    counted = before[torch.from_numpy(ends).to(before.device)].to(torch.int64) & 0xFFFF
    out = torch.from_numpy(table).to(before.device)
    out[:, 3] |= torch.where(known < 0, counted, known) << 40
    return out
