"""Rows of weights as kernels that multiply read them: tables of addresses, and the memory that these lie in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from .orders import MOST_PARTS

if TYPE_CHECKING:
    from .plan import Array

TILE_ROWS = 16
MOST_EIGHTS = 8
"""The most eights of inputs that are multiplied at once."""
SUMS_NBYTES = 512
"""The shared memory for eight inputs and a part of a tile."""
QUARTERS_NBYTES = 2 * 1024
"""The shared memory for each warp (thin_cascade.cuh)."""
LATER_TIERS_NBYTES = 160
"""Size of LaterTiers (thin_cascade.cuh)."""


class Cascades(NamedTuple):
    """Blocks whose later tiers are resolved before their rows are multiplied.

    Attributes:
        dtype: BF16 or F16.
        width: of tier 1.
        later: the most tiers behind it that a block has.
        slot_nbytes: the most bytes that a block has in shared memory for as long as its rows are multiplied.
        scratch_nbytes: the same while it is resolved.
        rows: how many rows each block has.
        addresses: of LaterTiers of each block.
        tables: of LaterTiers, which the addresses lie in.
    """

    dtype: torch.dtype
    width: int
    later: int
    slot_nbytes: int
    scratch_nbytes: int
    rows: Array
    addresses: Array
    tables: tuple[torch.Tensor, ...]

    def groups(self, most_blocks: int) -> Array:
        """Group of thin_cascade.cuh, two int64 each: neighbouring blocks that fill a tile, or one that is larger."""
        groups: list[list[int]] = []
        first, before = 0, 0
        for rows, address in zip(self.rows.tolist(), self.addresses.tolist(), strict=True):
            last = groups[-1] if groups else [0, 0, TILE_ROWS, 0]
            if last[2] + rows > TILE_ROWS or last[3] == most_blocks or address != before + LATER_TIERS_NBYTES:
                groups.append([address, first, rows, 1])
            else:
                last[2] += rows
                last[3] += 1
            first, before = first + rows, address
        return np.array([[address, row | rows << 32 | blocks << 48] for address, row, rows, blocks in groups])

    @property
    def least_nbytes(self) -> int:
        """Shared memory that suffices for any order and number of inputs."""
        sums = QUARTERS_NBYTES + MOST_PARTS * MOST_EIGHTS * SUMS_NBYTES
        return self.slot_nbytes + max(self.scratch_nbytes, sums)

    def joined(self, other: Cascades) -> Cascades:
        """The blocks of both; those of one dtype and width."""
        return Cascades(
            self.dtype,
            self.width,
            max(self.later, other.later),
            max(self.slot_nbytes, other.slot_nbytes),
            max(self.scratch_nbytes, other.scratch_nbytes),
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.addresses, other.addresses]),
            (*self.tables, *other.tables),
        )


class Rows(NamedTuple):
    """Rows of weights for the kernel, and what it reads through them.

    Attributes:
        table: RowAt of thin.cuh for each row, as four int64.
        columns: of each row.
        kept: the tensors that the table has addresses in.
        cascades: their blocks, if the table is of CascadeRow of thin_cascade.cuh.
    """

    table: torch.Tensor
    columns: int
    kept: tuple[torch.Tensor, ...]
    cascades: Cascades | None = None

    def at(self, frame: torch.Tensor, copy: torch.Tensor) -> Rows:
        """The same rows where a copy of their frame lies. What is in memory of its own stays there."""
        table, cascades = self.table.clone(), self.cascades
        _move(table[:, 0], frame, copy)
        kept = tuple(copy if each is frame else each for each in self.kept)
        if cascades is not None:
            twins = tuple(each.clone() for each in cascades.tables)
            addresses = torch.from_numpy(cascades.addresses.copy())
            for each, twin in zip(cascades.tables, twins, strict=True):
                _move(twin.view(torch.int64)[:, 0], frame, copy)
                _move(table[:, 2], each, twin)
                _move(addresses, each, twin)
            kept = (*kept, *twins)
            cascades = cascades._replace(addresses=addresses.numpy(), tables=twins)
        return Rows(table, self.columns, kept, cascades)


def _move(addresses: torch.Tensor, memory: torch.Tensor, copy: torch.Tensor) -> None:
    """Let the addresses that lie in some memory, int64, lie in its copy."""
    begin = memory.data_ptr()
    inside = (addresses >= begin) & (addresses < begin + memory.nbytes)
    addresses += torch.where(inside, copy.data_ptr() - begin, 0)
