"""Products by wgmma: bit for bit those of thin.cuh, taken only where a device agrees; and what the stand-in finds."""

from __future__ import annotations

import ctypes
import itertools
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tensorwire.torch.device import product as product_module
from tensorwire.torch.device.driver import Kernel
from tensorwire.torch.device.launching import is_for_wgmma, wgmma_launch
from tensorwire.torch.device.orders import DeviceOrder
from tensorwire.torch.device.product import DeviceProduct
from tensorwire.torch.device.product_rows import coded_with_lists

from .stand_in import KernelError, StandIn, missing, packed
from .summed import product_of, same_bits, sums_of
from .test_stand_in import HEADERS
from .weights import by_wgmma, frame_of, numbers, product_with, weight

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


# Rows, columns, inputs, the share of escapes, rows of a block: one to many tiles, parts, turns of the warpgroups.
SHAPES = [
    (1, 256, 17, 0.0, 1),
    (63, 512, 32, 0.015, 3),
    (65, 1024, 33, 0.5, 5),
    (130, 768, 48, 0.015, 32),
    (17, 2560, 64, 0.1, 4),
    (640, 256, 49, 0.1, 16),
]


@pytest.mark.parametrize(("rows", "columns", "count", "share", "block_rows"), SHAPES)
def test_products_have_the_bits_of_their_order(
    rows: int, columns: int, count: int, share: float, block_rows: int
) -> None:
    dense, x = weight(rows, columns, share), numbers(count, columns)
    product = by_wgmma(product_with(StandIn(seed=rows), frame_of(dense, block_rows)), count)
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))


@pytest.mark.parametrize(
    ("count", "order"),
    [
        (17, DeviceOrder(1, two=True)),
        (48, DeviceOrder(2, two=True)),
        (64, DeviceOrder(5, two=True)),
        (32, DeviceOrder(3, rounded=True)),
        (34, DeviceOrder(5, rounded=True)),
        (61, DeviceOrder(5)),
    ],
)
def test_other_orders(count: int, order: DeviceOrder) -> None:
    dense, x, bias = weight(20, 1280, 0.02), numbers(count, 1280), numbers(20, seed=3)
    product = by_wgmma(DeviceProduct(StandIn(), coded_with_lists(dense), order), count)
    found = product.multiply(x, bias, torch.bfloat16)
    assert same_bits(found, product_of(order.as_made(1280), x, dense, bias, torch.bfloat16))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("rows", "columns", "count", "order"),
    [(70, 512, 20, DeviceOrder(2)), (10, 768, 64, DeviceOrder(3, two=True)), (300, 256, 40, DeviceOrder(1))],
)
def test_threads_meet_in_no_byte_and_read_nothing_else(
    rows: int, columns: int, count: int, order: DeviceOrder, seed: int
) -> None:
    dense, x = weight(rows, columns, 0.05), numbers(count, columns)
    driver = StandIn(checked=True, seed=seed)
    product = by_wgmma(product_with(driver, frame_of(dense, 3)).in_order(order), count)
    assert same_bits(product.multiply(x), sums_of(order, x, dense))


# The host ------------------------------------------------------------------------------------------------------------


def kernels_of(driver: StandIn) -> list[str]:
    return [each.kernel.expression for each in driver.launches]


def test_it_is_taken_once_the_device_agrees() -> None:
    dense, driver = weight(130, 256), StandIn()
    for _ in range(2):
        product = DeviceProduct(driver, coded_with_lists(dense))
        for count, expression in ((16, "thin<2, false>"), (30, "wgmma<4, false>")):
            x = numbers(count, 256)
            found = product.multiply(x)
            assert same_bits(found, sums_of(product.order, x, dense))
            assert kernels_of(driver)[-1] == expression
            driver.launches.clear()
            product.multiply(x)
            assert kernels_of(driver) == [expression]
    assert driver.compiled[Kernel("wgmma.cuh", "wgmma<4, false>", "a")] == 3  # the trial, and two products


class OtherBits(StandIn):
    """Sums of wgmma differ in the last bit."""

    def function(self, kernel: Kernel, shared_nbytes: int = 0) -> Any:
        made = super().function(kernel, shared_nbytes)
        if kernel.header != "wgmma.cuh":
            return made

        def launch(*arguments: Any) -> None:
            made.launch(*arguments)
            out = ctypes.c_uint64.from_address(arguments[-1][3]).value
            ctypes.c_uint32.from_address(out).value ^= 1

        return SimpleNamespace(launch=launch)


class Fails(StandIn):
    """The compiler does not know the architecture."""

    def function(self, kernel: Kernel, shared_nbytes: int = 0) -> Any:
        if kernel.suffix:
            raise RuntimeError("sm_90a is not known")
        return super().function(kernel, shared_nbytes)


@pytest.mark.parametrize(("kind", "why"), [(OtherBits, "gives other bits than mma"), (Fails, "sm_90a is not known")])
def test_else_it_is_not(kind: type[StandIn], why: str, caplog: pytest.LogCaptureFixture) -> None:
    dense, x, driver = weight(130, 256), numbers(30, 256), kind()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            product = DeviceProduct(driver, coded_with_lists(dense))
            assert same_bits(product.multiply(x), sums_of(product.order, x, dense))
            assert kernels_of(driver)[-1] == "thin<4, false>"
    assert [why in record.message for record in caplog.records] == [True]  # said once


def test_no_trial_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, x, driver = weight(130, 256), numbers(30, 256), StandIn()
    monkeypatch.setattr(product_module, "is_capturing", lambda _: True)
    product = DeviceProduct(driver, coded_with_lists(dense))
    assert same_bits(product.multiply(x), sums_of(product.order, x, dense))
    assert kernels_of(driver) == ["thin<4, false>"]


def test_where_it_serves() -> None:
    driver = StandIn()
    assert is_for_wgmma(driver, 128, 3)
    assert not is_for_wgmma(driver, 64, 3)  # one tile for four processors
    assert not is_for_wgmma(driver, 128, 2)
    for architecture in (80, 89, 100):
        driver.architecture = architecture
        assert not is_for_wgmma(driver, 4096, 8)
    small = StandIn()
    small.shared_nbytes = 48 << 10
    assert not is_for_wgmma(small, 4096, 8)


class CompilesNothing(StandIn):
    def function(self, kernel: Kernel, shared_nbytes: int = 0) -> Any:
        assert shared_nbytes <= self.shared_nbytes


def test_launches_fit() -> None:
    driver = CompilesNothing()
    for parts, two, eights in itertools.product(range(1, 17), (False, True), range(3, 9)):
        how = wgmma_launch(driver, 100_000, DeviceOrder(parts, two), eights)
        registers = 128 if eights << two <= 8 else 168 if eights << two <= 12 else 256
        assert how.threads % (128 * how.together) == 0
        assert how.threads * registers <= 64 << 10
    assert wgmma_launch(driver, 100_000, DeviceOrder(8), 8).threads == 512
    assert wgmma_launch(driver, 100_000, DeviceOrder(5), 8).threads == 384  # two turns
    assert wgmma_launch(driver, 100_000, DeviceOrder(1), 4).together == 4


# The stand-in --------------------------------------------------------------------------------------------------------


def one_product(what: int, descriptor: int = 0) -> None:
    a, b = numbers(64, 16), numbers(32, 16, seed=2)
    out = torch.zeros(64, 32)
    driver = StandIn(checked=True, headers=HEADERS, seed=1)
    driver.watch(a, b, out)
    function = driver.function(Kernel("wgmma_small.cuh", f"one_product<{what}>", "a"), 2048)
    function.launch((1, 1, 1), 128, 2048, 0, packed(a, b, out, descriptor))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (1, "without a fence behind"),
        (2, "without wgmma_fence before"),
        (3, "race: "),
        (4, "a register that wgmma reads was written before it was waited for"),
        (5, "was written before it was waited for|race: "),
        (6, "the kernel ends while wgmma is under way"),
        (7, "sums of wgmma were written before they were waited for"),
        (8, "which nobody wrote"),
        (9, "unlike descriptors"),
        (10, "a register of wgmma was written behind wgmma_fence"),
    ],
)
def test_errors_are_found(what: int, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        one_product(what)


@pytest.mark.parametrize(
    ("bits", "message"),
    [(1 << 62, "not modelled"), (1 << 49, "not modelled"), (0x3FFF, "outside its arrays")],
)
def test_descriptors_are_checked(bits: int, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        one_product(11, descriptor=bits >> 32 if bits >> 32 else bits)
