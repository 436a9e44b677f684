"""A linear layer on a device whose weight stays compressed: rows are decoded and multiplied in registers."""

from __future__ import annotations

import functools

import torch

from ...codec import Layout
from . import kernels, products
from .decode import DeviceFrame
from .plan import RUN, CascadeLaunch, ConstantLaunch, EnecLaunch, Launch, StoredLaunch, leading

__all__ = ["DeviceLinear", "DeviceWeight", "arranged", "can_multiply"]

_BF16 = Layout(2, 8, 8, "float", True)
_ROWS = 1  # that one program takes: few, so that there are programs enough for all processors
_MOST_CHUNKS = 4
_LISTED_SHAPE = (4,)
_HIGHEST_LISTED_LO = 240
_LISTED_RUNS = 8  # that a program looks for escapes in at a time


class DeviceLinear:
    """A weight of two dimensions in a `DeviceFrame`, ready to be multiplied. Immutable: serves many threads at once.

    Attributes:
        max_inputs: how many inputs are multiplied at once. For more, decode the weight and let torch multiply.
    """

    max_inputs = 4

    def __init__(self, frame: DeviceFrame) -> None:
        """Make the lists of what escapes from tier shape (4).

        Raises:
            ValueError: `can_multiply(frame)` is false.
        """
        if not can_multiply(frame):
            raise ValueError("expected a frame of BF16 whose blocks are whole rows of whole runs; decode it instead")
        self._frame = frame
        self._rows, self._columns = frame.shape
        planned = frame.plan.rows.items()
        self._num_rows = {launch: sum(row[2] for row in rows) // self._columns for launch, rows in planned}
        self._lists: dict[Launch, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {
            launch: self._list_escapes(launch)
            for launch, rows in frame.plan.rows.items()
            if isinstance(launch, CascadeLaunch)
            and launch.widths == _LISTED_SHAPE
            and all(row[3] & 0xFF <= _HIGHEST_LISTED_LO for row in rows)
        }

    def multiply(self, x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """`x`, (count, columns), count up to max_inputs, times the transpose of the weight: (count, rows), rounded from
        float32 to `dtype`."""
        frame = self._frame
        count, columns = x.shape
        if not 0 < count <= self.max_inputs or columns != self._columns:
            raise ValueError(
                f"expected up to {self.max_inputs} inputs of {self._columns} numbers, got {tuple(x.shape)}"
            )
        out = torch.empty((count, self._rows), dtype=dtype, device=x.device)
        resolved = frame.scratch()
        rows_per_block = frame.info.block_words // columns
        chunks = next(c for c in (_MOST_CHUNKS, 2, 1) if columns // RUN % c == 0)
        inputs = {lead: arranged(x, lead) for lead in {leading(_width(launch)) for launch in frame.plan.rows}}
        for launch, blocks, number in frame.launches(0, frame.info.num_blocks):
            num_rows = self._num_rows[launch]
            lead = leading(_width(launch))
            rest = (inputs[lead], out, num_rows, rows_per_block, columns, self._rows)
            tile = {"inputs": count, "lead": lead, "chunks": chunks, "rows": _ROWS, "num_warps": 1}
            grid = (-(-num_rows // _ROWS),)
            assert not isinstance(launch, ConstantLaunch)  # see `can_multiply`
            if isinstance(launch, StoredLaunch):
                products.dense_kernel[grid](frame.source(launch), blocks, *rest, **tile)
            elif isinstance(launch, CascadeLaunch) and launch in self._lists:
                table, *lists = self._lists[launch]
                coded = (frame.frame, table, frame.before, *lists, *rest)
                products.listed_kernel[grid](*coded, launch.packed_widths, frame.permutation, **tile)
            else:
                frame.resolve(launch, blocks, number, resolved)
                coded = (frame.frame, blocks, frame.before, resolved, *rest)
                if isinstance(launch, EnecLaunch):
                    enec = (launch.quads_log2, launch.m, launch.nb)
                    products.enec_kernel[grid](*coded, *enec, frame.permutation, **tile)
                else:
                    tiers = (launch.packed_widths, len(launch.widths))
                    products.cascade_kernel[grid](*coded, *tiers, frame.permutation, **tile)
        return out

    def _list_escapes(self, launch: CascadeLaunch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Launch data in which number 7 is where a block's list begins; places in the block and exponents."""
        frame, listed, rows = self._frame, 0, []
        for row in frame.plan.rows[launch]:
            rows.append([*row[:7], listed])
            listed += row[4] & 0xFFFF
        table = frame.to_device(torch.tensor(rows, dtype=torch.int64).to(torch.int32))
        places = torch.zeros(listed + 1, dtype=torch.int32, device=table.device)
        exponents = torch.zeros(listed + 1, dtype=torch.uint8, device=table.device)
        kernels.escapes_kernel[(len(rows),)](
            frame.frame, table, frame.before, places, exponents, frame.runs_per_block, launch.rest_bits, _LISTED_RUNS
        )
        places[-1].item()  # waits for the lists: what reads them may run on another stream
        return table, places, exponents


class DeviceWeight(DeviceFrame):
    """A `DeviceFrame` with the products that the operators use."""

    @functools.cached_property
    def product(self) -> DeviceLinear | None:
        """It, ready to be multiplied; None if its blocks are not such as `DeviceLinear` takes."""
        return DeviceLinear(self) if can_multiply(self) else None


def can_multiply(frame: DeviceFrame) -> bool:
    """Whether a frame is BF16, in its usual layout, of two dimensions with a multiple of 256 columns, its blocks whole
    rows, its sign_mantissa verbatim, and none of its blocks constant. The kernel is for threads, not for vector
    processors."""
    if (
        frame.by_group
        or frame.dtype != torch.bfloat16
        or frame.info.layout != _BF16
        or len(frame.shape) != 2
        or 0 in frame.shape
        or frame.shape[1] % RUN
    ):
        return False
    if frame.info.block_words % frame.shape[1]:
        return False
    return all(
        isinstance(launch, StoredLaunch)
        or (not isinstance(launch, ConstantLaunch) and (launch.rest_bits, launch.trail) == (8, 0))
        for launch in frame.plan.rows
    )


def _width(launch: Launch) -> int:
    """By which tiles are laid out; words are read like digits of 4 bits."""
    if isinstance(launch, EnecLaunch):
        return launch.m
    return launch.widths[0] if isinstance(launch, CascadeLaunch) else 4


def arranged(inputs: torch.Tensor, lead: int) -> torch.Tensor:
    """Inputs as float32, run by run, and in each in the order in which a tile sees them: by row, number in the group,
    lane."""
    count, columns = inputs.shape
    runs = inputs.reshape(count, columns // RUN, 8 // lead, 8 * lead, 4).transpose(3, 4)
    return torch.empty(runs.shape, dtype=torch.float32, device=inputs.device).copy_(runs)
