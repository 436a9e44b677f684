"""Products with compressed weights on a device: bit for bit the sums of their order, whatever inputs a call has."""

from __future__ import annotations

import ctypes

import pytest
import torch

import tensorwire
from tensorwire.torch.device.frame import DeviceFrame
from tensorwire.torch.device.orders import DeviceOrder, usual_order
from tensorwire.torch.device.product import DeviceProduct, joint
from tensorwire.torch.device.product_rows import coded_with_lists

from .opened import bytes_tensor
from .stand_in import StandIn
from .summed import product_of, same_bits, sums_of
from .weights import frame_of, numbers, product_with, weight

# Rows, columns, inputs, the share of escapes, rows of a block: odd ends, one to many parts, tiles and blocks.
SHAPES = [
    (1, 256, 1, 0.0, 1),
    (7, 512, 8, 0.015, 3),
    (17, 1024, 9, 0.5, 5),
    (100, 768, 16, 0.015, 32),
    (33, 2560, 33, 0.1, 4),
    (17, 4096, 64, 0.0, 8),
    (5, 14336, 2, 0.002, 2),
    (300, 256, 5, 0.1, 16),
    (400, 512, 3, 0.015, 50),
]


@pytest.mark.parametrize(("rows", "columns", "count", "share", "block_rows"), SHAPES)
def test_products_have_the_bits_of_their_order(
    rows: int, columns: int, count: int, share: float, block_rows: int
) -> None:
    dense, x = weight(rows, columns, share), numbers(count, columns)
    driver = StandIn(seed=rows)
    product = product_with(driver, frame_of(dense, block_rows))
    found = product.multiply(x)
    assert same_bits(found, sums_of(product.order, x, dense))
    exact, sizes = x.double() @ dense.double().T, x.double().abs() @ dense.double().abs().T
    roundings = product.order.part_runs(columns) * 16 + product.order.parts
    assert ((found.double() - exact).abs() <= 2.0**-24 * roundings * sizes).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("rows", "columns", "count", "share"), [(17, 512, 3, 0.05), (270, 256, 20, 0.3), (3, 768, 64, 0.0)]
)
def test_threads_meet_in_no_byte_and_read_nothing_else(
    rows: int, columns: int, count: int, share: float, seed: int
) -> None:
    dense, x = weight(rows, columns, share), numbers(count, columns)
    driver = StandIn(checked=True, seed=seed)
    driver.architecture = 80  # which has no wgmma
    product = product_with(driver, frame_of(dense, 3))
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("biased", [False, True])
def test_results_are_rounded_once(dtype: torch.dtype, biased: bool) -> None:
    dense, x = weight(19, 512, 0.02), numbers(6, 512)
    bias = numbers(19, seed=5).to(dtype) if biased else None
    product = product_with(StandIn(checked=True), frame_of(dense, 8))
    found = product.multiply(x, bias, dtype)
    assert same_bits(found, product_of(product.order, x, dense, bias, dtype))


def test_a_product_is_one_launch() -> None:
    dense, x = weight(40, 512), numbers(16, 512)
    driver = StandIn()
    product = product_with(driver, frame_of(dense, 8))
    product.multiply(x)
    driver.launches.clear()
    driver.compiled.clear()
    for _ in range(3):
        product.multiply(x, numbers(40), torch.bfloat16)
    assert [launch.kernel.expression for launch in driver.launches] == ["thin<2, false>"] * 3
    assert not driver.compiled


def test_calls_share_no_arguments() -> None:
    """A second product begins, as on another thread, before the first one has launched."""
    product = DeviceProduct(StandIn(), coded_with_lists(weight(16, 256)))
    first, second = numbers(3, 256), numbers(5, 256)
    product.multiply(first)
    launches: list[list[int]] = []

    class Recorded:
        def launch(
            self, grid: object, threads: int, nbytes: int, stream: int, arguments: ctypes.Array[ctypes.c_void_p]
        ) -> None:
            if not launches:
                launches.append([])
                product.multiply(second)
            launches.append([ctypes.c_uint64.from_address(each or 0).value for each in arguments])

    product._launches[1] = product._launches[1]._replace(function=Recorded())
    result = product.multiply(first)
    _, of_second, of_first = launches
    assert (of_second[1], of_second[9]) == (second.data_ptr(), 5)
    assert (of_first[1], of_first[3], of_first[9]) == (first.data_ptr(), result.data_ptr(), 3)


def test_weights_of_other_widths_are_no_product() -> None:
    one, other = (DeviceProduct(StandIn(), coded_with_lists(weight(3, columns))) for columns in (256, 512))
    with pytest.raises(ValueError, match="the same columns and order"):
        joint([one, other])
    with pytest.raises(ValueError, match="the same columns and order"):
        joint([other, other.in_order(DeviceOrder(1))])


def test_large_exponents() -> None:
    dense, x = weight(12, 256), numbers(3, 256).mul(2.0**-20).to(torch.bfloat16)
    dense = dense.mul(2.0**120).to(torch.bfloat16)
    dense[:4] = dense[:4].mul(2.0**6).to(torch.bfloat16)
    product = DeviceProduct(StandIn(), coded_with_lists(dense))
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))


NO_PRODUCTS = {
    "F16 of three dimensions": lambda: numbers(2, 32, 512).half(),
    "F32": lambda: numbers(64, 512).float(),
    "one dimension": lambda: numbers(512 * 64),
    "parts of runs": lambda: numbers(64, 320),
    "no row": lambda: numbers(0, 512),
    "other kinds": lambda: torch.zeros(64, 512, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", NO_PRODUCTS)
def test_frames_without_products(name: str) -> None:
    frame = bytes_tensor(bytes(tensorwire.compress(NO_PRODUCTS[name](), profile="resident")))
    assert DeviceFrame(frame, driver=StandIn()).product is None


def test_tensor_cores_without_bf16() -> None:
    class Old(StandIn):
        architecture = 75

    assert DeviceFrame(frame_of(weight(8, 256), 8), driver=Old()).product is None


@pytest.mark.parametrize("count", [1, 40])
def test_little_shared_memory(count: int) -> None:
    class Small(StandIn):
        shared_nbytes = 48 << 10

    dense, x = weight(70, 2048, 0.01), numbers(count, 2048)
    driver = Small()
    product = product_with(driver, frame_of(dense, 10))
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))
    assert driver.launches[-1].threads < 256


@pytest.mark.parametrize(
    ("x", "bias", "dtype", "message"),
    [
        (numbers(65, 256), None, torch.float32, r"up to 64 inputs of 256 numbers in bfloat16, got \(65, 256\)"),
        (numbers(2, 512), None, torch.float32, r"got \(2, 512\) in torch.bfloat16"),
        (numbers(2, 256).float(), None, torch.float32, r"got \(2, 256\) in torch.float32"),
        (numbers(256), None, torch.float32, r"got \(256,\)"),
        (numbers(2, 256), None, torch.float16, "a result in bfloat16 or float32, got torch.float16"),
        (
            numbers(2, 256),
            numbers(5),
            torch.float32,
            r"a bias of 5 numbers in torch.float32, got \(5,\) in torch.bfloat16",
        ),
        (numbers(2, 256), numbers(4), torch.bfloat16, r"a bias of 5 numbers in torch.bfloat16, got \(4,\)"),
    ],
)
def test_errors(x: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, message: str) -> None:
    product = DeviceProduct(StandIn(), coded_with_lists(weight(5, 256)))
    with pytest.raises(ValueError, match=message):
        product.multiply(x, bias, dtype)


@pytest.mark.parametrize(("columns", "parts"), [(256, 1), (2048, 8), (2560, 5), (4096, 8), (5120, 7), (14336, 8)])
def test_the_usual_order_follows_from_the_shape(columns: int, parts: int) -> None:
    assert usual_order(columns) == DeviceOrder(parts)
