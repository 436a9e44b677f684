"""What holds for products with compressed weights by each of the kernels: thin, wgmma, cascades with later tiers."""

from __future__ import annotations

import pytest
import torch

from reference.tensorwire_reference import Cascade, Constant, Stored
from tensorwire.torch.device.frame import DeviceFrame
from tensorwire.torch.device.product import DeviceProduct, joint
from tensorwire.torch.device.product_rows import coded_with_lists

from .stand_in import StandIn, missing
from .summed import same_bits, sums_of
from .weights import (
    FOUR,
    KINDS,
    USUAL,
    WIDTHS,
    by_wgmma,
    cascade_with,
    cascades_of,
    frame_of,
    made,
    numbers,
    product_with,
    watch,
    watch_cascade,
    weight,
)  # fmt: skip

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

# The kernel, the dtype, and how many inputs: wgmma takes more than 16.
WAYS = [
    ("thin", torch.bfloat16, 9), ("wgmma", torch.bfloat16, 33), ("cascade", torch.bfloat16, 9),
    ("cascade", torch.float16, 9),
]  # fmt: skip
EACH = pytest.mark.parametrize(("way", "dtype", "count"), WAYS)


def product_of(way: str, driver: StandIn, frame: torch.Tensor, count: int) -> DeviceProduct:
    """By this kernel for so many inputs."""
    if way == "cascade":
        return cascade_with(driver, frame, count)
    product = product_with(driver, frame)
    return by_wgmma(product, count) if way == "wgmma" else product


def frame_by(way: str, dense: torch.Tensor, block_rows: int, kinds: Cascade | list[Cascade] = USUAL) -> torch.Tensor:
    return cascades_of(dense, block_rows, kinds if way == "cascade" else FOUR)


@pytest.mark.parametrize("way", ["thin", "cascade"])
def test_no_input_changes_the_bits_of_another(way: str) -> None:
    dense, x = weight(35, 1024, 0.01), numbers(64, 1024)
    x[11] = torch.inf
    x[40, 7] = torch.nan
    product = product_of(way, StandIn(), frame_by(way, dense, 5), 64)
    together = product.multiply(x)
    for count in (1, 5, 16, 31):
        assert same_bits(torch.cat([product.multiply(part) for part in x.split(count)]), together)


@EACH
def test_weights_and_inputs_that_are_no_numbers(way: str, dtype: torch.dtype, count: int) -> None:
    dense, x = made(dtype, 70, 512, 0.01), numbers(count, 512).to(dtype)
    dense[3, 100], dense[4, 5], dense[5, 6], dense[19, 511] = torch.nan, torch.inf, -torch.inf, 0.0
    product = product_of(way, StandIn(), frame_by(way, dense, 4), count)
    found = product.multiply(x)
    assert same_bits(found, sums_of(product.order, x, dense))
    assert found[:, 3].isnan().all()
    assert found[:, 4:6].isinf().all()
    assert found[:, [row for row in range(70) if row not in (3, 4, 5)]].isfinite().all()
    assert same_bits(product.multiply(x, None, dtype), found.to(dtype))
    x[2], x[3, 7] = torch.inf, torch.nan
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))


@pytest.mark.parametrize("way", ["thin", "wgmma"])
def test_inputs_may_be_views(way: str) -> None:
    dense, wide = weight(20, 256), numbers(30, 530)
    product = product_of(way, StandIn(checked=True), frame_of(dense, 8), 30)
    flat = wide.view(-1)[1 : 1 + 30 * 256].view(30, 256)  # contiguous, at an odd address
    by_columns, spread = wide[:, :256].T.contiguous().T, wide.repeat(2, 1)[::2, 8:264]
    for x in (wide[:, 8:264], wide[:, 4:260], flat, wide[:1, :256].expand(30, 256), by_columns, spread):
        assert same_bits(product.multiply(x), sums_of(product.order, x, dense))
    assert product.multiply(wide[:0, :256]).shape == (0, 20)


@pytest.mark.parametrize("way", ["thin", "cascade"])
def test_rows_of_several_weights_are_one_product(way: str) -> None:
    weights = [weight(rows, 1024, 0.01, seed=rows) for rows in (32, 8, 7)]
    x, driver = numbers(4, 1024), StandIn(checked=True)
    products = [product_of(way, driver, frame_by(way, dense, 5), 4) for dense in weights]
    together = joint(products)
    watch(driver, together)
    if way == "cascade":
        watch_cascade(driver, together, 4)
    driver.launches.clear()
    found = together.multiply(x)
    assert len(driver.launches) == 1
    for dense, part in zip(weights, found.split([32, 8, 7], 1), strict=True):
        assert same_bits(part, sums_of(together.order, x, dense))
    if way == "cascade":
        with pytest.raises(ValueError, match="width of tier 1"):
            joint([products[0], DeviceProduct(driver, coded_with_lists(weights[0]))])


@pytest.mark.parametrize(
    ("way", "dtype", "width"),
    [("thin", torch.bfloat16, 4), *(("cascade", dtype, width) for dtype in KINDS for width in WIDTHS)],
)
def test_blocks_of_other_kinds_are_made_such(way: str, dtype: torch.dtype, width: int) -> None:
    """A few; with more there is no product."""
    dense, x = made(dtype, 80, 256, 0.01), numbers(5, 256).to(dtype)
    dense[8:12] = 0.5
    dense[76:] = numbers(4, 256).view(torch.int16).mul(7919).view(dtype)
    dense = torch.where(dense.isfinite(), dense, 1.0)

    def frame(others: dict[int, Constant | Stored]) -> torch.Tensor:
        return cascades_of(dense, 4, FOUR if way == "thin" else KINDS[dtype][width], others)

    product = product_of(way, StandIn(checked=True), frame({2: Constant(), 19: Stored()}), 5)
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))
    assert DeviceFrame(frame({2: Constant(), 4: Stored(), 19: Stored()}), driver=StandIn()).product is None


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@EACH
def test_damaged_digits_read_nothing_outside(way: str, dtype: torch.dtype, count: int, seed: int) -> None:
    dense, x = made(dtype, 70 if way == "wgmma" else 20, 512, 0.05), numbers(count, 512).to(dtype)
    frame, driver = frame_by(way, dense, 5, [Cascade(variant=v) for v in (3, 0, 1)]), StandIn(checked=True, seed=seed)
    product = product_of(way, driver, frame, count)
    right = product.multiply(x)
    generator = torch.Generator().manual_seed(seed)
    where = torch.randint(1024, len(frame), (len(frame) // 4,), generator=generator)
    frame[where] = torch.randint(0, 256, where.shape, generator=generator, dtype=torch.uint8) | (240 if seed else 0)
    assert not same_bits(product.multiply(x), right)
