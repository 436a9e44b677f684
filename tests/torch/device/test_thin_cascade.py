"""Products with weights in cascades of any tier shape: the same bits as with the same weights in tier shape (4)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tensorwire  # noqa: E402
from reference.tensorwire_reference import Cascade  # noqa: E402
from tensorwire.torch.device.frame import DeviceFrame  # noqa: E402
from tensorwire.torch.device.orders import DeviceOrder  # noqa: E402
from tensorwire.torch.device.product import DeviceProduct, joint  # noqa: E402
from tensorwire.torch.device.product_rows import coded_with_lists  # noqa: E402

from .opened import CASCADES, bytes_tensor  # noqa: E402
from .stand_in import StandIn  # noqa: E402
from .summed import product_of, same_bits, sums_of  # noqa: E402
from .weights import (  # noqa: E402
    FOUR,
    KINDS,
    NAMES,
    WIDTHS,
    cascade_with,
    cascades_of,
    frame_of,
    halves,
    made,
    numbers,
    plain,
    product_with,
    weight,
)  # fmt: skip

MANY_TIERS = {(1, 1), (1, 3), (1, 5), (2, 3), (2, 4)}
"""Table and variant of tier shapes for which others of as many tiers stand. The kernel knows the first width alone."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if (kind.table, kind.variant) in MANY_TIERS else ())
        for kind in CASCADES
        if kind != FOUR
    ],
    ids=str,
)
def test_every_tier_shape_has_the_bits_of_shape_4(kind: Cascade) -> None:
    for rows, columns, block_rows, share in ((21, 512, 8, 0.01), (6, 1024, 3, 0.3)):
        dense, x = plain(rows, columns, share), numbers(3, columns)
        driver = StandIn(seed=kind.variant or 0)
        product = cascade_with(driver, cascades_of(dense, block_rows, kind))
        found = product.multiply(x)
        assert driver.launches[-1].kernel.header == "thin_cascade.cuh"
        assert same_bits(found, sums_of(product.order, x, dense))
        assert same_bits(found, DeviceProduct(driver, coded_with_lists(dense)).multiply(x))


# Rows, columns, inputs, the share of escapes, rows of a block: odd ends, one to many parts, tiles, blocks and groups.
SIZES = [
    (1, 256, 1, 0.0, 1),
    (7, 512, 8, 0.015, 3),
    (17, 1024, 9, 0.5, 5),
    (100, 768, 16, 0.015, 32),
    (33, 2560, 17, 0.1, 13),
    (17, 4096, 64, 0.0, 8),
    (5, 14336, 2, 0.002, 2),
    (300, 256, 5, 0.1, 128),
    (40, 512, 33, 0.015, 6),
]


@pytest.mark.parametrize(("rows", "columns", "count", "share", "block_rows"), SIZES)
def test_sizes(rows: int, columns: int, count: int, share: float, block_rows: int) -> None:
    dense, x = plain(rows, columns, share), numbers(count, columns)
    product = cascade_with(StandIn(seed=rows), cascades_of(dense, block_rows))
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))


@pytest.mark.parametrize(("rows", "columns", "count", "share", "block_rows"), SIZES[2:7])
def test_sizes_in_f16(rows: int, columns: int, count: int, share: float, block_rows: int) -> None:
    dense, x = halves(rows, columns, min(share, 0.1)), numbers(count, columns).half()
    product = cascade_with(StandIn(seed=rows), cascades_of(dense, block_rows, WIDTHS[3]), count)
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))


@pytest.mark.parametrize("profile", ["fast", "resident"])
def test_profiles_have_the_same_bits(profile: str) -> None:
    dense, x = weight(40, 4096, 0.005), numbers(5, 4096)
    frame = bytes_tensor(bytes(tensorwire.compress(dense, profile=profile)))
    product = DeviceFrame(frame, driver=StandIn()).product
    assert product is not None
    assert product.width == {"fast": 2, "resident": None}[profile]
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))


def test_resident_in_f16() -> None:
    dense, x = weight(40, 4096).half(), numbers(5, 4096).half()
    product = DeviceFrame(bytes_tensor(bytes(tensorwire.compress(dense, profile="resident"))), driver=StandIn()).product
    assert product is not None
    assert (product.width, product.dtype) == (3, torch.float16)
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))
    assert product.takes(x, x[0, :40])
    assert not product.takes(x.bfloat16(), None)
    assert not product.takes(x, x[0, :40].bfloat16())
    with pytest.raises(ValueError, match="numbers in float16, got"):
        product.multiply(x.bfloat16())
    with pytest.raises(ValueError, match="a result in float16 or float32, got"):
        product.multiply(x, None, torch.bfloat16)
    with pytest.raises(ValueError, match="dtype and width of tier 1"):
        joint([product, cascade_with(StandIn(), cascades_of(plain(8, 4096, 0.01), 4, WIDTHS[3]), 1)])


@pytest.mark.parametrize(
    ("dtype", "width", "rows", "columns", "count", "share"),
    [
        *((torch.bfloat16, width, *size) for size in ((19, 512, 3, 0.05), (40, 256, 20, 0.4)) for width in WIDTHS),
        *((torch.float16, width, 19, 512, 3, 0.05) for width in WIDTHS),
    ],
)
def test_threads_meet_in_no_byte_and_read_nothing_else(
    dtype: torch.dtype, width: int, rows: int, columns: int, count: int, share: float
) -> None:
    dense, x = made(dtype, rows, columns, share), numbers(count, columns).to(dtype)
    driver = StandIn(checked=True, seed=width)
    product = cascade_with(driver, cascades_of(dense, 5, KINDS[dtype][width]), count)
    assert product.width == width
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))


def test_shapes_of_one_first_width_are_one_launch() -> None:
    dense, x = plain(50, 512, 0.02), numbers(4, 512)
    kinds = [Cascade(variant=v) for v in (0, 1, 2, 3)] + [Cascade(variant=5, table=2)]
    driver = StandIn(checked=True)
    product = cascade_with(driver, cascades_of(dense, 4, kinds))
    driver.launches.clear()
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))
    assert len(driver.launches) == 1


def test_results_that_are_no_normal_numbers_of_f16() -> None:
    dense, x = halves(32, 512, 0.01), numbers(8, 512) * 2.0 ** torch.arange(-16, 16, 4)[:, None]
    dense[:8], dense[8, 5], dense[9, 6] = 2.0**-12, torch.nan, -torch.inf
    product = cascade_with(StandIn(), cascades_of(dense, 4), 8)
    wide, short = product.multiply(x.half()), product.multiply(x.half(), None, torch.float16)
    assert torch.equal(short.view(torch.int16), wide.half().view(torch.int16))  # NaN too
    assert short.isinf().any()
    assert ((short != 0) & (short.abs() < 2.0**-14)).any()


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize(
    "order", [DeviceOrder(1), DeviceOrder(1, two=True), DeviceOrder(3, rounded=True), DeviceOrder(16)]
)
def test_orders(order: DeviceOrder, dtype: torch.dtype) -> None:
    dense, x, bias = (each.to(dtype) for each in (made(dtype, 40, 4096, 0.01), numbers(3, 4096), numbers(40, seed=3)))
    product = cascade_with(StandIn(), cascades_of(dense, 8), 3).in_order(order)
    found = product.multiply(x, bias, dtype)
    assert same_bits(found, product_of(product.order, x, dense, bias, dtype))


@pytest.mark.parametrize("count", [1, 40])
def test_little_shared_memory(count: int) -> None:
    class Small(StandIn):
        shared_nbytes = 99 << 10

    dense, x = weight(40, 4096, 0.2), numbers(count, 4096)
    product = cascade_with(Small(), cascades_of(dense, 4))
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))

    class Less(StandIn):
        shared_nbytes = 48 << 10

    assert DeviceFrame(cascades_of(dense, 4), driver=Less()).product is None


def test_shape_4_keeps_its_own_kernel() -> None:
    dense = weight(8, 256)
    assert product_with(StandIn(), frame_of(dense, 4)).width is None
