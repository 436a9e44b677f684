"""Which order of summation the library of a device has, and whether it has the same bits by slabs.

Both are found by trial, as on CPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from ..frames.turn import is_capturing
from ..products.product import Product as Kind
from ..products.product import Strides, strides_of
from ..products.slabs import multiply_by_slabs
from ..products.trial import Trial
from ..products.ways import DTYPE_NAMES
from .orders import Order, candidates
from .plan import RUN
from .product import Product
from .product_cascades import MOST_WIDTH, rows_in_one_tier
from .product_rows import rows_of_words

if TYPE_CHECKING:
    from .driver import Driver
    from .rows import Rows

Library = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]


class DeviceTrial(Trial):
    """Products of a library on a device, with sums that cancel; and ours, of the same rows.

    Where the parts of a sum are rounded before they are added, the order within a part shows only if the part cancels.
    """

    spans = (0, RUN)

    def __init__(
        self, kind: Kind, device: torch.device, library: Library, driver: Driver | None = None, slab: int | None = None
    ) -> None:
        """`driver`: launches ours, for `orders`. `slab`: so many rows at a time are tried, for `allows_slabs`."""
        super().__init__(kind, slab)
        self._driver, self._device, self._library = driver, device, library
        self._rows_of: tuple[torch.Tensor, Product] | None = None

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
        """The same on the device. Where the host has rows of zeros, which take no memory there, the first rows stand
        again and again: they show more of the bits, and few rows are moved."""
        spans = {span.start: span for _, span, _ in self._places}
        tile = weight[spans[0]].to(self._device)
        rows = tile.repeat(-(-len(weight) // len(tile)), 1)[: len(weight)]
        for span in spans.values():
            rows[span] = weight[span].to(self._device)
        return x.to(self._device), rows, None if bias is None else bias.to(self._device)

    def _sums(self, x: torch.Tensor, tile: torch.Tensor, order: Any) -> torch.Tensor:
        if self._rows_of is None or self._rows_of[0] is not tile:
            assert self._driver is not None
            self._rows_of = tile, Product(self._driver, _rows_of(tile.to(self._device)))
        ours = self._rows_of[1].in_order(order)
        found = ours.multiply(x.reshape(-1, x.shape[-1]).to(self._device))
        return found.cpu().view(*x.shape[:-1], len(tile))


def _rows_of(tile: torch.Tensor) -> Rows:
    """As cascades in F16, of which few numbers of a trial escape: its exponents are near each other."""
    return rows_of_words(tile) if tile.dtype == torch.bfloat16 else rows_in_one_tier(tile, MOST_WIDTH)


class _CapturingError(Exception):
    """A graph is captured: the host cannot wait for results."""


def library_order(
    product: Product, x: torch.Tensor, bias: torch.Tensor | None, library: Library = linear
) -> Order | None:
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
def _order(kind: Kind, device: torch.device, library: Library, driver: Driver) -> Order | None:
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
    except _CapturingError:
        return False


@functools.lru_cache(maxsize=4096)
def _slabs(kind: Kind, device: torch.device, library: Library, slab: int) -> bool:
    if is_capturing(device):
        raise _CapturingError
    return DeviceTrial(kind, device, library, slab=slab).allows_slabs()


def _kind_of(x: torch.Tensor, rows: int, bias: torch.Tensor | None) -> Kind:
    shape = tuple(x.shape)
    return Kind(x.dtype, shape, strides_of(x.shape, x.stride()), rows, bias is not None, 1, False, _settings())


def _settings() -> tuple[object, ...]:
    """What torch chooses a kernel by, on a device, for products in BF16 and F16."""
    matmul = torch.backends.cuda.matmul
    preferred = getattr(torch.backends.cuda, "preferred_blas_library", lambda: None)
    reduced = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
    narrow = getattr(matmul, "allow_fp16_accumulation", None)
    return str(reduced), narrow, str(preferred()), torch.are_deterministic_algorithms_enabled()
