"""Products with weights that stay compressed on a device: one launch each, of thin.cuh or thin_cascade.cuh."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from .driver import Kernel
from .orders import MOST_PARTS, Order, usual_order

if TYPE_CHECKING:
    from .driver import Driver, Function
    from .plan import Array

_TILE_ROWS = 16
_MOST_WARPS = 8
_MOST_EIGHTS = 8  # of inputs
_WARP_NBYTES = 2 * 6144 + 1024  # of shared memory (thin.cuh)
_SUMS_NBYTES = 512  # for eight inputs and a part of a tile
_RESERVED_NBYTES = 1024  # of shared memory, in each block, by the device
_ALIGNMENT = 8  # of inputs
_MOST_PITCH = 1 << 24
_NUM_ARGUMENTS = 12
_MOST_ARGUMENTS = 19
_QUARTERS_NBYTES = 2 * 1024  # of shared memory, for each warp (thin_cascade.cuh)
_LATER_TIERS_NBYTES = 160

_CELLS = {n: ctypes.c_uint64 * n for n in (_NUM_ARGUMENTS, _MOST_ARGUMENTS)}
_ARGUMENTS = {n: ctypes.c_void_p * n for n in (_NUM_ARGUMENTS, _MOST_ARGUMENTS)}


class Cascades(NamedTuple):
    """Blocks whose later tiers are resolved before their rows are multiplied.

    Attributes:
        width: of tier 1.
        later: the most tiers behind it that a block has.
        slot_nbytes: the most bytes that a block has in shared memory for as long as its rows are multiplied.
        scratch_nbytes: the same while it is resolved.
        rows: how many rows each block has.
        addresses: of LaterTiers of each block.
    """

    width: int
    later: int
    slot_nbytes: int
    scratch_nbytes: int
    rows: Array
    addresses: Array

    def groups(self, most_blocks: int) -> Array:
        """Group of thin_cascade.cuh, two int64 each: neighbouring blocks that fill a tile, or one that is larger."""
        groups: list[list[int]] = []
        first, before = 0, 0
        for rows, address in zip(self.rows.tolist(), self.addresses.tolist(), strict=True):
            last = groups[-1] if groups else [0, 0, _TILE_ROWS, 0]
            if last[2] + rows > _TILE_ROWS or last[3] == most_blocks or address != before + _LATER_TIERS_NBYTES:
                groups.append([address, first, rows, 1])
            else:
                last[2] += rows
                last[3] += 1
            first, before = first + rows, address
        return np.array([[address, row | rows << 32 | blocks << 48] for address, row, rows, blocks in groups])

    @property
    def least_nbytes(self) -> int:
        """Shared memory that suffices for any order and number of inputs."""
        sums = _QUARTERS_NBYTES + MOST_PARTS * _MOST_EIGHTS * _SUMS_NBYTES
        return self.slot_nbytes + max(self.scratch_nbytes, sums)

    def joined(self, other: Cascades) -> Cascades:
        """The blocks of both; those of one width."""
        return Cascades(
            self.width,
            max(self.later, other.later),
            max(self.slot_nbytes, other.slot_nbytes),
            max(self.scratch_nbytes, other.scratch_nbytes),
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.addresses, other.addresses]),
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


class _Launch(NamedTuple):
    """How a kernel for so many inputs is launched."""

    function: Function
    grid: tuple[int, int, int]
    threads: int
    shared_nbytes: int
    together: int
    more: tuple[int, ...] = ()
    kept: torch.Tensor | None = None


class Product:
    """Rows of weights, ready to be multiplied. Immutable: serves many threads at once.

    A result depends on its row, its input and the order of summation, and on no other row or input.

    Attributes:
        max_inputs: how many inputs are multiplied at once. For more, decode the weight and let torch multiply.
        rows: number of rows.
        columns: of each row.
        order: the order of summation.
        width: of tier 1, where blocks have later tiers; None: all are in tier shape (4).
        driver: what launches.
    """

    max_inputs = 8 * _MOST_EIGHTS

    def __init__(self, driver: Driver, rows: Rows, order: Order | None = None) -> None:
        """In the usual order, if none is given."""
        self.driver = driver
        self._rows = rows
        self.rows = len(rows.table)
        self.columns = rows.columns
        self.order = usual_order(rows.columns) if order is None else order.as_made(rows.columns)
        self.width = None if rows.cascades is None else rows.cascades.width
        self._launches: dict[int, _Launch] = {}
        self._others: dict[Order, Product] = {}

    def in_order(self, order: Order) -> Product:
        """The same rows in another order of summation."""
        found = self if order == self.order else self._others.get(order)
        return found or self._others.setdefault(order, Product(self.driver, self._rows, order))

    def at(self, frame: torch.Tensor, copy: torch.Tensor) -> Product:
        """The same rows where a copy of their frame lies. What is in memory of its own stays there."""
        table = self._rows.table.clone()
        begin, nbytes = frame.data_ptr(), frame.nbytes
        inside = (table[:, 0] >= begin) & (table[:, 0] < begin + nbytes)
        table[:, 0] += torch.where(inside, copy.data_ptr() - begin, 0)
        kept = tuple(copy if each is frame else each for each in self._rows.kept)
        return Product(self.driver, Rows(table, self.columns, kept), self.order)

    def takes(self, x: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Whether inputs like `x`, (..., columns), and `bias` can be multiplied at once, with a result in BF16."""
        return (
            x.dtype == torch.bfloat16
            and x.shape[-1:] == (self.columns,)
            and 0 < x.numel() <= self.max_inputs * self.columns
            and (bias is None or (bias.dtype == torch.bfloat16 and bias.shape == (self.rows,)))
        )

    def multiply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """`x`, (count, columns) of BF16, times the transpose of the rows, plus `bias`, (rows,): (count, rows), rounded
        once from float32 to `dtype`, BF16 or float32. One launch on the current stream, which is not waited for.

        Raises:
            ValueError: inputs, bias or dtype are not such.
        """
        count = self._check(x, bias, dtype)
        out = torch.empty((count, self.rows), dtype=dtype, device=x.device)
        if count == 0:
            return out
        if x.stride(1) != 1 or x.stride(0) * 2 % _ALIGNMENT or x.data_ptr() % _ALIGNMENT or x.stride(0) > _MOST_PITCH:
            x = x.contiguous()
        if bias is not None:
            bias = bias.contiguous()
        eights = next(each for each in (1, 2, 4, 8) if count <= 8 * each)
        how = self._launches.get(eights) or self._prepare(eights)
        number = _NUM_ARGUMENTS + len(how.more)
        cells = _CELLS[number](
            self._rows.table.data_ptr(), x.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr(),
            self.rows, self.columns, self.order.part_runs(self.columns), how.together, x.stride(0) * 2, count,
            dtype == torch.float32, self.order.rounded, *how.more,
        )  # fmt: skip
        first = ctypes.addressof(cells)
        arguments = _ARGUMENTS[number](*range(first, first + 8 * number, 8))
        how.function.launch(how.grid, how.threads, how.shared_nbytes, self.driver.stream(), arguments)
        return out

    def multiply_each(self, x: torch.Tensor, ids: torch.Tensor, matrices: int) -> torch.Tensor:
        """Row ``x[i]`` times the transpose of matrix ``ids[i]``, where the rows are so many matrices, one behind the
        other, and ids lie on the device: (count, rows of a matrix) in BF16. One launch multiplies all rows of these
        matrices with up to 8 inputs, which takes no longer than with one, and the others are left out.
        """
        rows, count = self.rows // matrices, len(x)
        table = self._rows.table.view(matrices, -1)[ids].view(count * rows, -1)
        taken = Product(self.driver, Rows(table, self.columns, self._rows.kept), self.order)
        return taken.multiply(x, None, x.dtype).view(count, count, rows).diagonal().t().contiguous()

    def _check(self, x: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> int:
        if x.dim() != 2 or x.shape[1] != self.columns or len(x) > self.max_inputs or x.dtype != torch.bfloat16:
            raise ValueError(
                f"expected up to {self.max_inputs} inputs of {self.columns} numbers in bfloat16, "
                f"got {tuple(x.shape)} in {x.dtype}"
            )
        if dtype not in (torch.bfloat16, torch.float32):
            raise ValueError(f"expected a result in bfloat16 or float32, got {dtype}")
        if bias is not None and (bias.shape != (self.rows,) or bias.dtype != dtype):
            raise ValueError(
                f"expected a bias of {self.rows} numbers in {dtype}, got {tuple(bias.shape)} in {bias.dtype}"
            )
        return len(x)

    def _prepare(self, eights: int) -> _Launch:
        """How products with up to 8 * `eights` inputs are launched."""
        how = self._launches[eights] = self._thin(eights) if self._rows.cascades is None else self._cascade(eights)
        return how

    def _thin(self, eights: int) -> _Launch:
        driver, tiles = self.driver, -(-self.rows // _TILE_ROWS)
        ways = min(self.order.parts, _MOST_WARPS)
        together = max(1, min(_MOST_WARPS // ways, tiles // (2 * driver.num_processors)))

        def nbytes() -> int:
            return together * (ways * _WARP_NBYTES + self.order.parts * eights * _SUMS_NBYTES)

        while nbytes() > driver.shared_nbytes and together * ways > 1:
            together, ways = (together - 1, ways) if together > 1 else (together, ways - 1)
        function = driver.function(Kernel("thin.cuh", f"thin<{eights}, {self._two}>"), nbytes())
        grid = self._grid(-(-tiles // together), together * ways, nbytes(), eights < 8)
        return _Launch(function, grid, 32 * together * ways, nbytes(), together)

    def _cascade(self, eights: int) -> _Launch:
        driver, cascades, parts = self.driver, self._rows.cascades, self.order.parts
        assert cascades is not None
        tiles = -(-int(cascades.rows.max()) // _TILE_ROWS)
        together = max(1, min(tiles, _MOST_WARPS // parts))
        warps = max(2, min(_MOST_WARPS, parts * together))
        most_blocks = max(1, _TILE_ROWS // int(np.median(cascades.rows)))
        teams = min(2, most_blocks)

        def nbytes() -> int:
            sums = warps * _QUARTERS_NBYTES + together * parts * eights * _SUMS_NBYTES
            return most_blocks * cascades.slot_nbytes + max(teams * cascades.scratch_nbytes, sums)

        while nbytes() > driver.shared_nbytes:
            if together > 1:
                together -= 1
            elif most_blocks > 1:
                most_blocks = -(-most_blocks // 2)
                teams = min(teams, most_blocks)
            else:
                warps -= 1
        table = torch.from_numpy(cascades.groups(most_blocks)).to(self._rows.table.device)
        expression = f"thin_cascade<{cascades.width}, {eights}, {self._two}>"
        function = driver.function(Kernel("thin_cascade.cuh", expression), nbytes())
        more = (
            table.data_ptr(), len(table), most_blocks * cascades.slot_nbytes, cascades.slot_nbytes,
            cascades.scratch_nbytes, teams, cascades.later,
        )  # fmt: skip
        grid = self._grid(len(table), warps, nbytes(), eights == 1 or (eights < 8 and cascades.width <= 2))
        return _Launch(function, grid, 32 * warps, nbytes(), together, more, table)

    @property
    def _two(self) -> str:
        return "true" if self.order.two else "false"

    def _grid(self, blocks: int, warps: int, shared_nbytes: int, two: bool) -> tuple[int, int, int]:
        """So many blocks, as far as processors have room for them at the same time. Registers allow `two` of eight
        warps, or one."""
        at_once = min(
            _MOST_WARPS * (2 if two else 1) // warps,
            (self.driver.shared_nbytes + _RESERVED_NBYTES) // (shared_nbytes + _RESERVED_NBYTES),
        )
        return min(blocks, self.driver.num_processors * max(1, at_once)), 1, 1


def joint(products: Sequence[Product]) -> Product:
    """One product with the rows of all, one weight after the other: one launch, whose result is split into views.

    Raises:
        ValueError: they have other columns, orders of summation, or widths of tier 1.
    """
    first = products[0]
    if any((each.columns, each.order, each.width) != (first.columns, first.order, first.width) for each in products):
        raise ValueError(
            "expected products with the same columns and order of summation and width of tier 1, got "
            + ", ".join(f"{each.columns} columns in {each.order}, {each.width} bits" for each in products)
        )
    parts = [each._rows for each in products]
    kept = tuple(tensor for part in parts for tensor in part.kept)
    blocks = [part.cascades for part in parts if part.cascades is not None]
    cascades = functools.reduce(Cascades.joined, blocks) if blocks else None
    table = torch.cat([part.table for part in parts])
    return Product(first.driver, Rows(table, first.columns, kept, cascades), first.order)
