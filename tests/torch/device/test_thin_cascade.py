"""Products with weights in cascades of any tier shape: the same bits as with the same weights in tier shape (4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

import tensorwire  # noqa: E402
from reference.tensorwire_reference import Cascade, Constant, Kind, Stored, Verbatim, encode  # noqa: E402
from tensorwire.torch.device.frame import DeviceFrame  # noqa: E402
from tensorwire.torch.device.orders import DeviceOrder  # noqa: E402
from tensorwire.torch.device.product import DeviceProduct, joint  # noqa: E402
from tensorwire.torch.device.product_rows import coded_with_lists  # noqa: E402

from .cascades import ALL_SHAPES, SHAPES  # noqa: E402
from .opened import bytes_tensor  # noqa: E402
from .stand_in import StandIn  # noqa: E402
from .summed import product_of, same_bits, sums_of  # noqa: E402
from .weights import frame_of, numbers, product_with, watch, weight  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

OTHER_SHAPES = [shape for shape in ALL_SHAPES if SHAPES[shape[0]][shape[1]] != (4,)]
USUAL = Cascade(variant=3)
NAMES = {torch.bfloat16: "BF16", torch.float16: "F16"}
WIDTHS = {1: Cascade(variant=4), 2: USUAL, 3: Cascade(variant=6), 4: Cascade(variant=2, table=2)}
KINDS = {torch.bfloat16: WIDTHS, torch.float16: {**WIDTHS, 4: Cascade(variant=0, table=2)}}
"""By dtype and width of tier 1. No other tier shape that begins with 4 has as few names as F16 has exponents."""


def cascades_of(
    dense: torch.Tensor,
    block_rows: int,
    kinds: Cascade | list[Cascade] = USUAL,
    others: Mapping[int, Kind] | None = None,
) -> torch.Tensor:
    """A frame, whose blocks take turns in these kinds but for `others`, by their numbers."""
    turns = kinds if isinstance(kinds, list) else [kinds]
    each: list[Kind] = [turns[k % len(turns)] for k in range(-(-len(dense) // block_rows))]
    for block, kind in (others or {}).items():
        each[block] = kind
    data, block_words = dense.view(torch.int16).numpy().tobytes(), block_rows * dense.shape[1]
    return bytes_tensor(
        encode(
            data,
            NAMES[dense.dtype],
            tuple(dense.shape),
            kind=each,
            rest=Verbatim(),
            profile="fast",
            block_words=block_words,
        )
    )


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


@pytest.mark.parametrize(("table", "variant"), OTHER_SHAPES)
def test_every_tier_shape_has_the_bits_of_shape_4(table: int, variant: int) -> None:
    kind = Cascade(variant=variant, table=table)
    for rows, columns, block_rows, share in ((21, 512, 8, 0.01), (6, 1024, 3, 0.3)):
        dense, x = plain(rows, columns, share), numbers(3, columns)
        driver = StandIn(seed=variant)
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


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_blocks_of_other_kinds_are_made_such(width: int, dtype: torch.dtype) -> None:
    dense, x = made(dtype, 80, 256, 0.01), numbers(5, 256).to(dtype)
    dense[8:12] = 0.5
    dense[76:] = numbers(4, 256).view(torch.int16).mul(7919).view(dtype)
    dense = torch.where(dense.isfinite(), dense, 1.0)
    others = {2: Constant(), 19: Stored()}
    driver = StandIn(checked=True)
    product = cascade_with(driver, cascades_of(dense, 4, KINDS[dtype][width], others), 5)
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))
    many = cascades_of(dense, 4, KINDS[dtype][width], {2: Constant(), 4: Stored(), 19: Stored()})
    assert DeviceFrame(many, driver=StandIn()).product is None


def test_no_input_changes_the_bits_of_another() -> None:
    dense, x = weight(20, 1024, 0.01), numbers(64, 1024)
    x[11] = torch.inf
    x[40, 7] = torch.nan
    product = cascade_with(StandIn(), cascades_of(dense, 5))
    together = product.multiply(x)
    for count in (1, 5, 16, 31):
        assert same_bits(torch.cat([product.multiply(part) for part in x.split(count)]), together)


@pytest.mark.parametrize("dtype", NAMES)
def test_weights_that_are_no_numbers(dtype: torch.dtype) -> None:
    dense, x = made(dtype, 20, 512, 0.01), numbers(4, 512).to(dtype)
    dense[3, 100], dense[4, 5], dense[5, 6], dense[19, 511] = torch.nan, torch.inf, -torch.inf, 0.0
    product = cascade_with(StandIn(), cascades_of(dense, 4), 8)
    found = product.multiply(x)
    assert same_bits(found, sums_of(product.order, x, dense))
    assert found[:, 3].isnan().all()
    assert found[:, 4:6].isinf().all()
    assert found[:, [row for row in range(20) if row not in (3, 4, 5)]].isfinite().all()
    short = product.multiply(x, None, dtype)
    assert same_bits(short, found.to(dtype))


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


def test_rows_of_several_weights_are_one_product() -> None:
    weights = [weight(rows, 1024, 0.01, seed=rows) for rows in (32, 8, 7)]
    x, driver = numbers(4, 1024), StandIn(checked=True)
    products = [cascade_with(driver, cascades_of(dense, 5)) for dense in weights]
    together = joint(products)
    watch(driver, together)
    watch_cascade(driver, together)
    driver.launches.clear()
    found = together.multiply(x)
    assert len(driver.launches) == 1
    for dense, part in zip(weights, found.split([32, 8, 7], 1), strict=True):
        assert same_bits(part, sums_of(together.order, x, dense))
    with pytest.raises(ValueError, match="width of tier 1"):
        joint([products[0], DeviceProduct(driver, coded_with_lists(weights[0]))])


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


@pytest.mark.parametrize(("seed", "dtype"), [*((seed, torch.bfloat16) for seed in range(3)), (2, torch.float16)])
def test_damaged_digits_read_nothing_outside(seed: int, dtype: torch.dtype) -> None:
    dense, x = made(dtype, 20, 512, 0.05), numbers(9, 512).to(dtype)
    frame, driver = cascades_of(dense, 5, [Cascade(variant=v) for v in (3, 0, 1)]), StandIn(checked=True, seed=seed)
    product = cascade_with(driver, frame, 9)
    right = product.multiply(x)
    generator = torch.Generator().manual_seed(seed)
    where = torch.randint(1024, len(frame), (len(frame) // 4,), generator=generator)
    frame[where] = torch.randint(0, 256, where.shape, generator=generator, dtype=torch.uint8) | (
        255 if seed == 2 else 0
    )
    assert not same_bits(product.multiply(x), right)


def test_shape_4_keeps_its_own_kernel() -> None:
    dense = weight(8, 256)
    assert product_with(StandIn(), frame_of(dense, 4)).width is None
