"""Weights in tier shape (4), for tests of products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from reference.tensorwire_reference import Cascade, Kind, Verbatim, encode
from tensorwire.torch.device.frame import DeviceFrame

from .opened import bytes_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorwire.torch.device.product import DeviceProduct

    from .stand_in import StandIn

FOUR = Cascade(variant=0, table=2)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal BF16."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(torch.bfloat16)


def weight(rows: int, columns: int, share: float = 0.0, seed: int = 1) -> torch.Tensor:
    """BF16 of which that share, and few more, escape."""
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn((rows, columns), generator=generator) * 0.02
    far = torch.rand((rows, columns), generator=generator) < share
    scales = 2.0 ** torch.randint(-60, 20, (rows, columns), generator=generator)
    return torch.where(far, out * scales, out).to(torch.bfloat16)


def frame_of(dense: torch.Tensor, block_rows: int, others: Mapping[int, Kind] | None = None) -> torch.Tensor:
    """All its blocks are in tier shape (4), but for those of other kinds, by their numbers."""
    data = dense.view(torch.int16).numpy().tobytes()
    kinds: list[Kind] = [FOUR] * -(-len(dense) // block_rows)
    for block, kind in (others or {}).items():
        kinds[block] = kind
    block_words = block_rows * dense.shape[1]
    frame = encode(
        data, "BF16", tuple(dense.shape), kind=kinds, rest=Verbatim(), profile="fast", block_words=block_words
    )
    return bytes_tensor(frame)


def product_with(driver: StandIn, frame: torch.Tensor) -> DeviceProduct:
    """The product of a frame, of which every byte that it may touch is known to the stand-in."""
    product = DeviceFrame(frame, driver=driver).product
    assert product is not None
    watch(driver, product)
    return product


def watch(driver: StandIn, *products: DeviceProduct) -> None:
    """What the kernel reads through its table."""
    for product in products:
        driver.watch(product._rows.table, *product._rows.kept)
