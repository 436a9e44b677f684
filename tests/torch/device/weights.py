"""Weights in cascades, for tests of products: in tier shape (4), or in others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from reference.tensorwire_reference import Cascade, Kind, Verbatim, encode
from tensorwire.torch.device.frame import DeviceFrame
from tensorwire.torch.device.launching import wgmma_launch

from .opened import bytes_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorwire.torch.device.product import DeviceProduct

    from .stand_in import StandIn

FOUR = Cascade(variant=0, table=2)
USUAL = Cascade(variant=3)
NAMES = {torch.bfloat16: "BF16", torch.float16: "F16"}
WIDTHS = {1: Cascade(variant=4), 2: USUAL, 3: Cascade(variant=6), 4: Cascade(variant=2, table=2)}
KINDS = {torch.bfloat16: WIDTHS, torch.float16: {**WIDTHS, 4: Cascade(variant=0, table=2)}}
"""By dtype and width of tier 1. No other tier shape that begins with 4 has as few names as F16 has exponents."""


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


def cascades_of(
    dense: torch.Tensor, rows: int, kinds: Cascade | list[Cascade] = USUAL, others: Mapping[int, Kind] | None = None
) -> torch.Tensor:
    """A frame with blocks of so many rows, which take turns in these kinds but for `others`, by their numbers."""
    turns = kinds if isinstance(kinds, list) else [kinds]
    each: list[Kind] = [turns[k % len(turns)] for k in range(-(-len(dense) // rows))]
    for block, kind in (others or {}).items():
        each[block] = kind
    data, block_words = dense.view(torch.int16).numpy().tobytes(), rows * dense.shape[1]
    options = {"kind": each, "rest": Verbatim(), "profile": "fast", "block_words": block_words}
    return bytes_tensor(encode(data, NAMES[dense.dtype], tuple(dense.shape), **options))


def frame_of(dense: torch.Tensor, rows: int, others: Mapping[int, Kind] | None = None) -> torch.Tensor:
    """The same in tier shape (4)."""
    return cascades_of(dense, rows, FOUR, others)


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


def by_wgmma(product: DeviceProduct, count: int) -> DeviceProduct:
    """The product, of which those with so many inputs are by wgmma."""
    eights = -(-count // 8)
    product._launches[eights] = wgmma_launch(product.driver, product.rows, product.order, eights)
    return product


def cascade_with(driver: StandIn, frame: torch.Tensor, most: int = 64) -> DeviceProduct:
    """For up to so many inputs."""
    product = product_with(driver, frame)
    assert product.width is not None
    watch_cascade(driver, product, most)
    return product


def watch_cascade(driver: StandIn, product: DeviceProduct, most: int = 64) -> None:
    for eights in (1, 2, 4, 8)[: max(1, (most - 1).bit_length() - 2)]:
        kept = product._prepare(eights, product._rows.table.device).kept
        assert kept is not None
        driver.watch(kept)


def plain(rows: int, columns: int, share: float, seed: int = 1) -> torch.Tensor:
    """Weights whose exponents are near, but for a share; so each tier shape makes them shorter."""
    dense = weight(rows, columns, share, seed).view(torch.int16)
    near = dense & ~0x7F80 | (118 + dense % 3 // 2 << 7).to(torch.int16)
    odd = torch.rand(dense.shape, generator=torch.Generator().manual_seed(seed)) < share + 0.01
    return torch.where(odd, dense, near).view(torch.bfloat16)


def halves(rows: int, columns: int, share: float, seed: int = 1) -> torch.Tensor:
    """Like `plain` in F16, for a share of up to 0.1. Others are of all sizes: zeros and denormals too."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(-(1 << 15), 1 << 15, (rows, columns), generator=generator)
    odd = torch.rand(words.shape, generator=generator) < share + 0.01
    exponents = torch.where(odd, words % 31, 12 + words % 3 // 2)
    return (words & ~0x7C00 | exponents << 10).to(torch.int16).view(torch.float16)


def made(dtype: torch.dtype, rows: int, columns: int, share: float) -> torch.Tensor:
    return {torch.bfloat16: plain, torch.float16: halves}[dtype](rows, columns, share)
