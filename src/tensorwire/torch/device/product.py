"""Products with weights that stay compressed on a device: one launch each, of thin.cuh, wgmma.cuh or
thin_cascade.cuh."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..frames.turn import is_capturing
from .launching import ProductLaunch, cascade_launch, is_for_wgmma, thin_launch, wgmma_launch
from .orders import DeviceOrder, usual_order
from .plan import RUN
from .product_rows import coded_with_lists
from .rows import MOST_EIGHTS, Cascades, Rows

if TYPE_CHECKING:
    from .driver import Driver

_log = logging.getLogger("tensorwire.torch.device")
_ALIGNMENT = 16  # of inputs
_AT_ONCE = 8
"""So many matrices, each with an input of its own, are multiplied at once."""
_TRIED_ROWS = 70
_MOST_PITCH = 1 << 24
_NUM_ARGUMENTS = 12


class DeviceProduct:
    """Rows of weights, ready to be multiplied. Immutable: serves many threads at once.

    A result depends on its row, its input and the order of summation, and on no other row or input.

    Attributes:
        max_inputs: how many inputs are multiplied at once. For more, decode the weight and let torch multiply.
        rows: number of rows.
        columns: of each row.
        dtype: of the rows and of inputs, BF16 or F16.
        order: the order of summation.
        width: of tier 1, where blocks have later tiers; None: all are in tier shape (4).
        driver: what launches.
    """

    max_inputs = 8 * MOST_EIGHTS

    def __init__(self, driver: Driver, rows: Rows, order: DeviceOrder | None = None) -> None:
        """In the usual order, if none is given."""
        self.driver = driver
        self._rows = rows
        self.rows = len(rows.table)
        self.columns = rows.columns
        self.order = usual_order(rows.columns) if order is None else order.as_made(rows.columns)
        self.width = None if rows.cascades is None else rows.cascades.width
        self.dtype = torch.bfloat16 if rows.cascades is None else rows.cascades.dtype
        self._launches: dict[int, ProductLaunch] = {}  # by eights of inputs
        self._launches_of_each: dict[int, ProductLaunch] = {}  # by matrices at once
        self._others: dict[DeviceOrder, DeviceProduct] = {}

    def in_order(self, order: DeviceOrder) -> DeviceProduct:
        """The same rows in another order of summation."""
        found = self if order == self.order else self._others.get(order)
        return found or self._others.setdefault(order, DeviceProduct(self.driver, self._rows, order))

    def at(self, frame: torch.Tensor, copy: torch.Tensor) -> DeviceProduct:
        """The same rows where a copy of their frame lies. What is in memory of its own stays there."""
        return DeviceProduct(self.driver, self._rows.at(frame, copy), self.order)

    def takes(self, x: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Whether inputs like `x`, (..., columns), and `bias` can be multiplied at once, with a result in
        their dtype."""
        return (
            x.dtype == self.dtype
            and x.shape[-1:] == (self.columns,)
            and 0 < x.numel() <= self.max_inputs * self.columns
            and (bias is None or (bias.dtype == self.dtype and bias.shape == (self.rows,)))
        )

    def multiply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """`x`, (count, columns), times the transpose of the rows, plus `bias`, (rows,): (count, rows), rounded once
        from float32 to `dtype`, that of the rows or float32. One launch on the current stream, which is not waited for.

        Raises:
            ValueError: inputs, bias or dtype are not such.
        """
        count = self._check(x, bias, dtype)
        out = torch.empty((count, self.rows), dtype=dtype, device=x.device)
        if count == 0:
            return out
        x = _aligned(x)
        if bias is not None:
            bias = bias.contiguous()
        eights = -(-count // 8)
        how = self._launches.get(eights) or self._prepare(eights, x.device)
        self._launch(how, self._rows.table, x, bias, out)
        return out

    def multiply_each(self, x: torch.Tensor, ids: torch.Tensor, matrices: int) -> torch.Tensor:
        """Row ``x[i]`` times the transpose of matrix ``ids[i]``, where the rows are so many matrices, one behind the
        other, and ids lie on the device: (count, rows of a matrix) in BF16. A launch for each 8 inputs multiplies all
        rows of their matrices with all of them, which takes no longer than with one, and what is not wanted is left
        out.
        """
        tables = self._rows.table.view(matrices, -1, 4)[ids]
        parts = [self._each_of(*both) for both in zip(tables.split(_AT_ONCE), x.split(_AT_ONCE), strict=True)]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def _each_of(self, tables: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Each input times the matrix whose table stands at its place."""
        count, rows = tables.shape[:2]
        how = self._launches_of_each.get(count)
        if how is None:
            how = self._launches_of_each[count] = thin_launch(self.driver, count * rows, self.order, 1)
        out = torch.empty((count, count, rows), dtype=x.dtype, device=x.device)
        self._launch(how, tables.view(-1, 4), _aligned(x), None, out)
        return out.diagonal().t()

    def _launch(
        self, how: ProductLaunch, table: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        try:
            cells, addresses = how.free.pop()
        except IndexError:
            cells, addresses = self._arguments(how)
        address = 0 if bias is None else bias.data_ptr()
        cells[:5] = [table.data_ptr(), x.data_ptr(), address, out.data_ptr(), len(table)]
        cells[8:11] = [x.stride(0) * 2, len(x), out.dtype == torch.float32]
        how.function.launch(how.grid, how.threads, how.shared_nbytes, self.driver.stream(), addresses)
        how.free.append((cells, addresses))

    def _arguments(self, how: ProductLaunch) -> tuple[ctypes.Array[ctypes.c_uint64], ctypes.Array[ctypes.c_void_p]]:
        """Packed arguments of a launch. A call sets the first five, and pitch, count and whether results are wide."""
        fixed = self.columns, self.order.part_runs(self.columns), how.together
        cells = (ctypes.c_uint64 * (_NUM_ARGUMENTS + len(how.more)))(
            *[0] * 5, *fixed, *[0] * 3, self.order.rounded, *how.more
        )
        first = ctypes.addressof(cells)
        return cells, (ctypes.c_void_p * len(cells))(*range(first, first + 8 * len(cells), 8))

    def _check(self, x: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> int:
        if x.dim() != 2 or x.shape[1] != self.columns or len(x) > self.max_inputs or x.dtype != self.dtype:
            raise ValueError(
                f"expected up to {self.max_inputs} inputs of {self.columns} numbers in {_name(self.dtype)}, "
                f"got {tuple(x.shape)} in {x.dtype}"
            )
        if dtype not in (self.dtype, torch.float32):
            raise ValueError(f"expected a result in {_name(self.dtype)} or float32, got {dtype}")
        if bias is not None and (bias.shape != (self.rows,) or bias.dtype != dtype):
            raise ValueError(
                f"expected a bias of {self.rows} numbers in {dtype}, got {tuple(bias.shape)} in {bias.dtype}"
            )
        return len(x)

    def _prepare(self, eights: int, device: torch.device) -> ProductLaunch:
        """How products with up to 8 * `eights` inputs are launched."""
        cascades, made = self._rows.cascades, thin_launch
        if cascades is not None:
            how = self._launches[eights] = cascade_launch(self.driver, cascades, self.order, eights, device)
            return how
        if is_for_wgmma(self.driver, self.rows, eights) and not is_capturing(device):
            made = wgmma_launch if _agrees(self.driver, device, eights, self.order.two) else thin_launch
        how = self._launches[eights] = made(self.driver, self.rows, self.order, eights)
        return how


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """`x`, or a copy where rows do not lie as kernels want them."""
    if (
        x.stride(1) == 1
        and x.stride(0) * 2 % _ALIGNMENT == x.data_ptr() % _ALIGNMENT == 0
        and x.stride(0) <= _MOST_PITCH
    ):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def joint(products: Sequence[DeviceProduct]) -> DeviceProduct:
    """One product with the rows of all, one weight after the other: one launch, whose result is split into views.

    Raises:
        ValueError: they have other dtypes, columns, orders of summation, or widths of tier 1.
    """
    first = products[0]
    if len({(each.dtype, each.columns, each.order, each.width) for each in products}) > 1:
        raise ValueError(
            "expected products with the same columns and order of summation, dtype and width of tier 1, got "
            + ", ".join(
                f"{_name(each.dtype)}, {each.columns} columns in {each.order}, {each.width} bits" for each in products
            )
        )
    parts = [each._rows for each in products]
    kept = tuple(tensor for part in parts for tensor in part.kept)
    blocks = [part.cascades for part in parts if part.cascades is not None]
    cascades = functools.reduce(Cascades.joined, blocks) if blocks else None
    table = torch.cat([part.table for part in parts])
    return DeviceProduct(first.driver, Rows(table, first.columns, kept, cascades), first.order)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.lru_cache(maxsize=256)
def _agrees(driver: Any, device: torch.device, eights: int, two: bool) -> bool:
    """Whether wgmma gives the bits of mma there, on sums of numbers of all sizes that nearly cancel. That is known of
    no device before it has shown it."""
    generator = torch.Generator().manual_seed(1)

    def numbers(count: int) -> torch.Tensor:
        sizes = 2.0 ** torch.randint(-12, 12, (count, 2 * RUN), generator=generator)
        values = (torch.randn((count, 2 * RUN), generator=generator) * sizes).view(count, -1, 2)
        values[..., 1] = values[..., 0] * (1 + 2.0**-6)
        return values.view(count, -1).to(torch.bfloat16).to(device)

    rows, x = coded_with_lists(numbers(_TRIED_ROWS)), numbers(8 * eights)
    x[:, 1::2] *= -1
    results = []
    try:
        for made in (thin_launch, wgmma_launch):
            product = DeviceProduct(driver, rows, DeviceOrder(2, two))
            product._launches[eights] = made(driver, product.rows, product.order, eights)
            results.append(product.multiply(x).view(torch.int32).cpu())
    except RuntimeError as error:  # of the compiler or the driver
        _log.warning("%s: products for 17 to 64 inputs do without wgmma: %s", device, error)
        return False
    if not torch.equal(*results):
        _log.warning("%s: products for 17 to 64 inputs do without wgmma, which gives other bits than mma", device)
        return False
    return True
