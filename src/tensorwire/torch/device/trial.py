"""Which order of summation the library of a device has, by trial as on CPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from ..products.product import Product as Kind
from ..products.product import Strides, strides_of
from ..products.trial import Trial
from .orders import Order, candidates
from .plan import RUN
from .product import Product
from .product_rows import rows_of_words

if TYPE_CHECKING:
    from .driver import Driver

Library = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]


class DeviceTrial(Trial):
    """Products of a library on a device, with sums that cancel; and ours, of the same rows.

    Where the parts of a sum are rounded before they are added, the order within a part shows only if the part cancels.
    """

    spans = (0, RUN)

    def __init__(self, kind: Kind, driver: Driver, device: torch.device, library: Library = linear) -> None:
        super().__init__(kind)
        self._driver, self._device, self._library = driver, device, library
        self._rows_of: tuple[torch.Tensor, Product] | None = None

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        on_device = None if bias is None else bias.to(self._device)
        return self._library(x.to(self._device), weight.to(self._device), on_device).cpu()

    def _sums(self, x: torch.Tensor, tile: torch.Tensor, order: Any) -> torch.Tensor:
        if self._rows_of is None or self._rows_of[0] is not tile:
            self._rows_of = tile, Product(self._driver, rows_of_words(tile.to(self._device)))
        ours = self._rows_of[1].in_order(order)
        found = ours.multiply(x.reshape(-1, x.shape[-1]).to(self._device))
        return found.cpu().view(*x.shape[:-1], len(tile))


def library_order(
    product: Product, x: torch.Tensor, bias: torch.Tensor | None, library: Library = linear
) -> Order | None:
    """The order in which `library` sums products of this kind, of BF16 with the rows of `product`; None if it is none
    of ours, or may not be tried now. Tried once for each kind, which takes memory for the dense weight meanwhile."""
    kind = Kind(
        x.dtype, tuple(x.shape), strides_of(x.shape, x.stride()), product.rows, bias is not None, 1, False, _settings()
    )
    if kind.strides is not Strides.USUAL or not product.takes(x, bias):
        return None
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    driver: Any = product.driver  # which is hashable
    return _found(kind, driver, x.device, library)


@functools.lru_cache(maxsize=4096)
def _found(kind: Kind, driver: Driver, device: torch.device, library: Library) -> Order | None:
    orders = DeviceTrial(kind, driver, device, library).orders(candidates(kind.columns))
    return orders[0] if orders else None


def _settings() -> tuple[object, ...]:
    """What torch chooses a kernel by, on a device."""
    matmul = torch.backends.cuda.matmul
    preferred = getattr(torch.backends.cuda, "preferred_blas_library", lambda: None)
    reduced = matmul.allow_bf16_reduced_precision_reduction
    return str(reduced), str(preferred()), torch.are_deterministic_algorithms_enabled()
