"""Which order of summation the library of a device has, and whether it has the same bits by slabs.

Both are found by trial, as on CPUs, and for each number of inputs: a library may have another kernel for one more, and
promises nothing of others. What torch makes of contiguous inputs before it asks the library is known, so that not each
shape with so many inputs is tried. Orders are for up to 64 inputs, which bounds these trials. Slabs are for up to 255,
and save less, so `_MOST_SLABS` bounds them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from ..frames.turn import is_capturing
from ..products.kind import ProductKind, Strides, strides_of
from ..products.slabs import multiply_by_slabs
from ..products.trial import Trial
from ..products.ways import DTYPE_NAMES
from .orders import DeviceOrder, candidates
from .plan import RUN
from .product import DeviceProduct
from .product_cascades import MOST_WIDTH, coded_in_one_tier
from .product_rows import coded_with_lists

if TYPE_CHECKING:
    from .driver import Driver
    from .rows import Rows

_MOST_SLABS = 32
"""Trials of slabs for weights of one kind. With other numbers of inputs these are then decoded as a whole."""

Library = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]


class DeviceTrial(Trial):
    """Products of a library on a device, with sums that cancel; and ours, of the same rows.

    Where the parts of a sum are rounded before they are added, the order within a part shows only if the part cancels.
    """

    spans = (0, RUN)

    def __init__(
        self,
        kind: ProductKind,
        device: torch.device,
        library: Library,
        driver: Driver | None = None,
        slab: int | None = None,
    ) -> None:
        """`driver`: launches ours, for `orders`. `slab`: so many rows at a time are tried, for `allows_slabs`."""
        super().__init__(kind, slab)
        self._driver, self._device, self._library = driver, device, library
        self._of_tile = self._rows_of_tile()
        if kind.rows >= self._count:
            self._compared = [(0, slice(0, kind.rows), self._of_tile)]
        self._rows_of: tuple[torch.Tensor, DeviceProduct] | None = None

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._library(*self._there(x, weight, bias)).cpu()

    def _by_slabs(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, slab: int
    ) -> torch.Tensor | None:
        inputs, rows, biases = self._there(x, weight, bias)
        return multiply_by_slabs(inputs, len(rows), slab, biases, lambda start, stop: rows[start:stop]).cpu()

    def _there(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The same on the device. Where the host has rows of zeros, which take no memory there, the rows of the tile
        stand again and again: they show more of the bits, and few rows are moved."""
        of_tile, place = self._of_tile.to(self._device), self._places[0][1]
        rows = weight[place].to(self._device)[of_tile]
        return x.to(self._device), rows, None if bias is None else bias[place].to(self._device)[of_tile]

    def _rows_of_tile(self) -> torch.Tensor:
        """Which row of the tile, or of what one weight has of it, stands at each row of a weight."""
        found = torch.arange(self._kind.rows, device="cpu") % self._count
        if len(found) >= self._count:
            for _, span, of_tile in self._places:
                found[span] = torch.arange(of_tile.start, of_tile.stop, device="cpu")
        return found

    def _sums(self, x: torch.Tensor, tile: torch.Tensor, order: Any) -> torch.Tensor:
        if self._rows_of is None or self._rows_of[0] is not tile:
            assert self._driver is not None
            self._rows_of = tile, DeviceProduct(self._driver, _rows_of(tile.to(self._device)))
        ours = self._rows_of[1].in_order(order)
        found = ours.multiply(x.reshape(-1, x.shape[-1]).to(self._device))
        return found.cpu().view(*x.shape[:-1], len(tile))


def _rows_of(tile: torch.Tensor) -> Rows:
    """As cascades in F16, of which few numbers of a trial escape: its exponents are near each other."""
    return coded_with_lists(tile) if tile.dtype == torch.bfloat16 else coded_in_one_tier(tile, MOST_WIDTH)


class _CapturingError(Exception):
    """A graph is captured: the host cannot wait for results."""


class _TooManyError(Exception):
    """There were as many trials as there may be."""


def library_order(
    product: DeviceProduct, x: torch.Tensor, bias: torch.Tensor | None, library: Library = linear
) -> DeviceOrder | None:
    """The order in which `library` sums products of this kind, with the rows of `product`; None if it is none
    of ours, or is not known and may not be tried now. Tried once for each kind, which takes memory for the dense weight
    meanwhile."""
    kind = _kind_of(x, product.rows, bias)
    if kind.strides is not Strides.USUAL or not product.takes(x, bias):
        return None
    driver: Any = product.driver  # which is hashable
    try:
        return _order(kind, x.device, library, driver)
    except _CapturingError:  # nothing is kept
        return None


@functools.lru_cache(maxsize=4096)
def _order(kind: ProductKind, device: torch.device, library: Library, driver: Driver) -> DeviceOrder | None:
    if is_capturing(device):
        raise _CapturingError
    orders = DeviceTrial(kind, device, library, driver).orders(candidates(kind.columns))
    return orders[0] if orders else None


def allows_slabs(x: torch.Tensor, rows: int, slab: int, bias: torch.Tensor | None, library: Library = linear) -> bool:
    """Whether products of this kind have the bits of `library` if so many rows of the weight are multiplied at a time.
    Tried as an order is."""
    kind = _kind_of(x, rows, bias)
    if kind.strides is not Strides.USUAL or kind.dtype not in DTYPE_NAMES:
        return False
    try:
        return _slabs(kind, x.device, library, slab)
    except (_CapturingError, _TooManyError):
        return False


@functools.lru_cache(maxsize=4096)
def _slabs(kind: ProductKind, device: torch.device, library: Library, slab: int) -> bool:
    if is_capturing(device):
        raise _CapturingError
    tried = _tried_slabs(kind._replace(shape=(kind.columns,)), device, library, slab)
    if len(tried) == _MOST_SLABS:
        raise _TooManyError
    tried.append(kind.num_inputs)
    return DeviceTrial(kind, device, library, slab=slab).allows_slabs()


@functools.lru_cache(maxsize=4096)
def _tried_slabs(of_weight: ProductKind, device: torch.device, library: Library, slab: int) -> list[int]:
    """For which numbers of inputs such slabs were tried."""
    return []


def _kind_of(x: torch.Tensor, rows: int, bias: torch.Tensor | None) -> ProductKind:
    """Torch makes one matrix of contiguous inputs of any shape. Whether it then adds a bias in the library may
    depend on how many dimensions they have."""
    strides, shape = strides_of(x.shape, x.stride()), tuple(x.shape)
    if strides is Strides.USUAL and len(shape) > 2:
        shape = (*[1] * (len(shape) - 2), math.prod(shape[:-1]), shape[-1])
    return ProductKind(x.dtype, shape, strides, rows, bias is not None, 1, False, _settings())


def _settings() -> tuple[object, ...]:
    """What torch chooses a kernel by, on a device, for products in BF16 and F16."""
    matmul = torch.backends.cuda.matmul
    preferred = getattr(torch.backends.cuda, "preferred_blas_library", lambda: None)
    reduced = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
    narrow = getattr(matmul, "allow_fp16_accumulation", None)
    return str(reduced), narrow, str(preferred()), torch.are_deterministic_algorithms_enabled()
