"""A linear layer on a device whose weight stays compressed: rows are decoded and multiplied in registers."""

from __future__ import annotations

import functools

import torch

from . import kernels
from .decode import DeviceFrame
from .plan import RUN, CascadeLaunch, ConstantLaunch, EnecLaunch, Launch, StoredLaunch, leading
from .products import CASCADE, DENSE, ENEC, LISTED, product_kernel

__all__ = ["DeviceLinear", "DeviceWeight", "arranged", "can_multiply"]

_ROWS = 4  # of one program
_MOST_CHUNKS = 4
_FEW_INPUTS = 4  # with more, a program has half as many rows, so that its sums stay in registers
_LISTED_SHAPE = (4,)
_HIGHEST_LISTED_LO = 240
_RUNS = 8


class DeviceLinear:
    """A weight of two dimensions in a `DeviceFrame`, ready to be multiplied. Immutable: serves many threads at once.

    Attributes:
        max_inputs: how many inputs are multiplied at once. For more, decode the weight and let torch multiply.
    """

    max_inputs = 8

    def __init__(self, frame: DeviceFrame) -> None:
        """Make the lists of what escapes from tier shape (4).

        Raises:
            ValueError: `can_multiply(frame)` is false.
        """
        if not can_multiply(frame):
            raise ValueError("expected a frame of BF16 whose blocks are whole rows of whole runs; decode it instead")
        self._frame = frame
        self._rows, self._columns = frame.shape
        self._lists: dict[Launch, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {
            launch: self._list_escapes(launch)
            for launch, rows in frame.plan.rows.items()
            if isinstance(launch, CascadeLaunch)
            and launch.widths == _LISTED_SHAPE
            and all(row[3] & 0xFF <= _HIGHEST_LISTED_LO for row in rows)
        }

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x`, (count, columns), count up to max_inputs, times the transpose of the weight: float32, (count, rows)."""
        frame = self._frame
        inputs = x.to(torch.float32).contiguous()
        count, columns = inputs.shape
        if not 0 < count <= self.max_inputs or columns != self._columns:
            raise ValueError(
                f"expected up to {self.max_inputs} inputs of {self._columns} numbers, got {tuple(x.shape)}"
            )
        out = torch.empty((count, self._rows), dtype=torch.float32, device=x.device)
        resolved = frame.scratch()
        rows_per_block = frame.info.block_words // columns
        rows = _ROWS if count <= _FEW_INPUTS else _ROWS // 2
        chunks = next(c for c in (_MOST_CHUNKS, 2, 1) if columns // RUN % c == 0)
        for launch, blocks, number in frame.launches(0, frame.info.num_blocks):
            table, places, exponents = self._lists.get(launch, (blocks, blocks, frame.frame))
            coding, widths, last, quads_log2, m, nb = self._constants(launch)
            lead = leading(m or widths & 15)
            if isinstance(launch, CascadeLaunch | EnecLaunch):
                frame.resolve(launch, blocks, number, resolved)
            source = frame.source(launch) if isinstance(launch, StoredLaunch) else frame.frame
            num_rows = sum(row[2] for row in frame.plan.rows[launch]) // columns
            product_kernel[(-(-num_rows // rows),)](
                source, table, frame.before, resolved, places, exponents, arranged(inputs, lead),
                out, num_rows, rows_per_block, columns, self._rows,
                coding, widths, last, quads_log2, m, nb, count, lead, frame.permutation, chunks, rows, num_warps=1,
            )  # fmt: skip
        return out

    def _constants(self, launch: Launch) -> tuple[int, int, int, int, int, int]:
        """Coding, widths, number of tiers, and enec's quads_log2, m and nb; words are read like digits of 4 bits."""
        if isinstance(launch, EnecLaunch):
            return ENEC.value, 0, 0, launch.quads_log2, launch.m, launch.nb
        if isinstance(launch, CascadeLaunch):
            coding = LISTED.value if launch in self._lists else CASCADE.value
            return coding, launch.packed_widths, len(launch.widths), 0, 0, 0
        return DENSE.value, 4, 0, 0, 0, 0

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
            frame.frame, table, frame.before, places, exponents, frame.runs_per_block, launch.rest_bits, _RUNS
        )
        return table, places, exponents


class DeviceWeight(DeviceFrame):
    """A `DeviceFrame` with the products that the operators use."""

    @functools.cached_property
    def product(self) -> DeviceLinear | None:
        """It, ready to be multiplied; None if its blocks are not such as `DeviceLinear` takes."""
        return DeviceLinear(self) if can_multiply(self) else None


def can_multiply(frame: DeviceFrame) -> bool:
    """Whether a frame is BF16 of two dimensions with a multiple of 256 columns, its blocks whole rows, its
    sign_mantissa verbatim, and none of its blocks constant. The kernel is for threads, not for vector processors."""
    if (
        frame.by_group
        or frame.dtype != torch.bfloat16
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


def arranged(inputs: torch.Tensor, lead: int) -> torch.Tensor:
    """Inputs run by run, and in each in the order in which a tile sees them: by row, number in the group, lane."""
    count, columns = inputs.shape
    return inputs.view(count, columns // RUN, 8 // lead, 8 * lead, 4).transpose(3, 4).contiguous()
