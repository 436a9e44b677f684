"""Products with weights that stay compressed on a device: one launch of thin.cuh each."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from .driver import Kernel
from .orders import Order, usual_order

if TYPE_CHECKING:
    from .driver import Driver, Function

_TILE_ROWS = 16
_MOST_WARPS = 8
_WARP_NBYTES = 2 * 6144 + 1024  # of shared memory (thin.cuh)
_SUMS_NBYTES = 512  # for eight inputs and a part of a tile
_RESERVED_NBYTES = 1024  # of shared memory, in each block, by the device
_ALIGNMENT = 8  # of inputs
_MOST_PITCH = 1 << 24
_NUM_ARGUMENTS = 12

_Cells = ctypes.c_uint64 * _NUM_ARGUMENTS
_Arguments = ctypes.c_void_p * _NUM_ARGUMENTS


class Rows(NamedTuple):
    """Rows of weights for the kernel, and what it reads through them.

    Attributes:
        table: RowAt of thin.cuh for each row, as four int64.
        columns: of each row.
        kept: the tensors that the table has addresses in.
    """

    table: torch.Tensor
    columns: int
    kept: tuple[torch.Tensor, ...]


class _Launch(NamedTuple):
    """How a kernel for so many inputs is launched."""

    function: Function
    grid: tuple[int, int, int]
    threads: int
    shared_nbytes: int
    together: int


class Product:
    """Rows of weights, ready to be multiplied. Immutable: serves many threads at once.

    A result depends on its row, its input and the order of summation, and on no other row or input.

    Attributes:
        max_inputs: how many inputs are multiplied at once. For more, decode the weight and let torch multiply.
        rows: number of rows.
        columns: of each row.
        order: the order of summation.
        driver: what launches.
    """

    max_inputs = 64

    def __init__(self, driver: Driver, rows: Rows, order: Order | None = None) -> None:
        """In the usual order, if none is given."""
        self.driver = driver
        self._rows = rows
        self.rows = len(rows.table)
        self.columns = rows.columns
        self.order = usual_order(rows.columns) if order is None else order.as_made(rows.columns)
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
        cells = _Cells(
            self._rows.table.data_ptr(), x.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr(),
            self.rows, self.columns, self.order.part_runs(self.columns), how.together, x.stride(0) * 2, count,
            dtype == torch.float32, self.order.rounded,
        )  # fmt: skip
        first = ctypes.addressof(cells)
        arguments = _Arguments(*range(first, first + 8 * _NUM_ARGUMENTS, 8))
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
        driver, tiles = self.driver, -(-self.rows // _TILE_ROWS)
        ways = min(self.order.parts, _MOST_WARPS)
        together = max(1, min(_MOST_WARPS // ways, tiles // (2 * driver.num_processors)))

        def nbytes() -> int:
            return together * (ways * _WARP_NBYTES + self.order.parts * eights * _SUMS_NBYTES)

        while nbytes() > driver.shared_nbytes and together * ways > 1:
            together, ways = (together - 1, ways) if together > 1 else (together, ways - 1)
        warps = together * ways
        at_once = min(
            _MOST_WARPS * (1 if eights == 8 else 2) // warps,
            (driver.shared_nbytes + _RESERVED_NBYTES) // (nbytes() + _RESERVED_NBYTES),
        )
        two = "true" if self.order.two else "false"
        function = driver.function(Kernel("thin.cuh", f"thin<{eights}, {two}>"), nbytes())
        grid = min(-(-tiles // together), driver.num_processors * max(1, at_once)), 1, 1
        how = self._launches[eights] = _Launch(function, grid, 32 * warps, nbytes(), together)
        return how


def joint(products: Sequence[Product]) -> Product:
    """One product with the rows of all, one weight after the other: one launch, whose result is split into views.

    Raises:
        ValueError: they have other columns, or other orders of summation.
    """
    first = products[0]
    if any((each.columns, each.order) != (first.columns, first.order) for each in products):
        raise ValueError(
            "expected products with the same columns and order of summation, got "
            + ", ".join(f"{each.columns} columns in {each.order}" for each in products)
        )
    parts = [each._rows for each in products]
    kept = tuple(tensor for part in parts for tensor in part.kept)
    return Product(first.driver, Rows(torch.cat([part.table for part in parts]), first.columns, kept), first.order)
