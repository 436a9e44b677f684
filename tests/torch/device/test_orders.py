"""Orders of summation on a device: kernels have the bits of their references, and a trial finds a library's order."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.nn.functional import linear

import tensorwire.torch.device.frame as frame_module
from tensorwire.torch import ops
from tensorwire.torch.device.frame import DeviceFrame
from tensorwire.torch.device.library import library_order
from tensorwire.torch.device.orders import MOST_PARTS, DeviceOrder, candidates, usual_order
from tensorwire.torch.device.product import DeviceProduct
from tensorwire.torch.device.product_cascades import coded_in_one_tier
from tensorwire.torch.device.product_rows import coded_with_lists

from .stand_in import StandIn
from .summed import library_in, product_of, same_bits, sums_of
from .weights import frame_of, numbers, watch, weight

ORDERS = [
    DeviceOrder(1), DeviceOrder(1, two=True), DeviceOrder(3), DeviceOrder(4, two=True), DeviceOrder(5, rounded=True),
    DeviceOrder(8, True, True), DeviceOrder(MOST_PARTS), DeviceOrder(2, rounded=True),
]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [3, 12])
def test_kernels_have_the_bits_of_the_reference(order: DeviceOrder, count: int) -> None:
    dense, x, bias = weight(21, 2304, 0.01), numbers(count, 2304), numbers(21, seed=3)
    driver = StandIn(seed=count)
    product = DeviceProduct(driver, coded_with_lists(dense), order)
    assert same_bits(product.multiply(x), sums_of(order, x, dense))
    assert same_bits(product.multiply(x, bias, torch.bfloat16), product_of(order, x, dense, bias, torch.bfloat16))


@pytest.mark.parametrize("order", [DeviceOrder(1, two=True), DeviceOrder(MOST_PARTS, rounded=True)])
def test_checked_in_other_orders(order: DeviceOrder) -> None:
    dense, x = weight(17, 2048, 0.01), numbers(2, 2048)
    driver = StandIn(checked=True, seed=1)
    product = DeviceProduct(driver, coded_with_lists(dense), order)
    watch(driver, product)
    assert same_bits(product.multiply(x), sums_of(order, x, dense))


def test_no_input_changes_the_bits_of_another_in_other_orders() -> None:
    dense, x = weight(16, 1024), numbers(40, 1024)
    for order in (DeviceOrder(1, two=True), DeviceOrder(2, rounded=True)):
        product = DeviceProduct(StandIn(), coded_with_lists(dense), order)
        one_by_one = torch.cat([product.multiply(x[k : k + 1]) for k in range(40)])
        assert same_bits(product.multiply(x), one_by_one)


@pytest.mark.parametrize("columns", [256, 512, 1024, 2560])
def test_candidates_are_unlike_orders(columns: int) -> None:
    found = candidates(columns)
    assert len(set(found)) == len(found)
    assert usual_order(columns) in found
    assert found[0] == DeviceOrder(1)
    assert all(order.as_made(columns) == order and order.parts <= MOST_PARTS for order in found)
    generator = torch.Generator().manual_seed(1)
    values = torch.cat([numbers(10, columns // 256, 128)] * 2, 2)
    values[2:, :, 128:] *= -1
    in_run = values[:, :, torch.randperm(256, generator=generator)].reshape(10, columns)  # each run cancels
    anywhere = values.view(10, columns)[:, torch.randperm(columns, generator=generator)]
    pairs = [(some[:2], some[2:]) for some in (in_run, anywhere)]
    bits = {tuple(sums_of(order, *pair).numpy().tobytes() for pair in pairs) for order in found}
    assert len(bits) == len(found)


@pytest.mark.parametrize(
    ("order", "rows", "columns", "shape", "biased"),
    [
        (DeviceOrder(1), 66, 256, (1,), False),
        (DeviceOrder(1, two=True), 70, 512, (3,), True),
        (DeviceOrder(2, rounded=True), 64, 512, (2, 2), False),
        (DeviceOrder(3), 32, 768, (5,), True),
    ],
)
def test_a_trial_finds_the_order(
    order: DeviceOrder, rows: int, columns: int, shape: tuple[int, ...], biased: bool
) -> None:
    dense, x = weight(rows, columns), numbers(*shape, columns)
    driver, library = StandIn(), library_in(order)
    bias = numbers(rows, seed=2) if biased else None
    product = DeviceProduct(driver, coded_with_lists(dense))
    assert library_order(product, x, bias, library) == order
    exact = product.in_order(order).multiply(x.reshape(-1, columns), bias, torch.bfloat16)
    assert same_bits(exact.view(*shape, rows), library(x, dense, bias))
    driver.launches.clear()
    assert library_order(product, x + 1, bias, library) == order
    assert not driver.launches  # it is known


@pytest.mark.parametrize("order", [DeviceOrder(1), DeviceOrder(2, two=True, rounded=True)])
def test_a_trial_finds_the_order_in_f16(order: DeviceOrder) -> None:
    dense, x = weight(66, 512).half(), numbers(3, 512).half()
    product = DeviceProduct(StandIn(), coded_in_one_tier(dense, 3))
    assert library_order(product, x, None, library_in(order)) == order
    assert library_order(product, x.bfloat16(), None, library_in(order)) is None


def test_a_library_in_another_order() -> None:
    def backwards(x: torch.Tensor, dense: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return library_in(DeviceOrder(1))(x.flip(-1), dense.flip(-1), bias)

    x, product = numbers(2, 512), DeviceProduct(StandIn(), coded_with_lists(weight(64, 512)))
    assert library_order(product, x, None, backwards) is None
    assert library_order(product, x, None, linear) is None  # that of the CPU


@pytest.mark.parametrize("biased", [False, True])
def test_all_rows_of_a_trial_are_compared(biased: bool) -> None:
    """Also those between the places where the trial on a CPU has rows: a library may have two kernels for a weight."""
    dense, x, bias = weight(768, 256), numbers(2, 256), numbers(768, seed=2) if biased else None
    product = DeviceProduct(StandIn(), coded_with_lists(dense))

    def library(x: torch.Tensor, dense: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        found = library_in(DeviceOrder(1))(x, dense, bias)
        other = library_in(DeviceOrder(1, two=True))(x, dense[570:600], None if bias is None else bias[570:600])
        return torch.cat([found[:, :570], other, found[:, 600:]], 1)

    assert library_order(product, x, bias, library_in(DeviceOrder(1))) == DeviceOrder(1)
    assert library_order(product, x, bias, library) is None


def test_shapes_that_torch_makes_one_matrix_of_are_tried_once() -> None:
    driver, library = StandIn(), library_in(DeviceOrder(1))
    product = DeviceProduct(driver, coded_with_lists(weight(64, 256)))
    launches = []
    for shape in ((1, 6), (2, 3), (6, 1), (6,), (3, 1, 2), (1, 7)):
        driver.launches.clear()
        assert library_order(product, numbers(*shape, 256), None, library) == DeviceOrder(1)
        launches.append(len(driver.launches))
    assert [count > 0 for count in launches] == [True, False, False, True, True, True]


def test_inputs_that_are_not_tried() -> None:
    driver = StandIn()
    product = DeviceProduct(driver, coded_with_lists(weight(8, 512)))
    for x in (numbers(65, 512), numbers(0, 512), numbers(2, 512).float(), numbers(2, 256), numbers(512, 4).T):
        assert library_order(product, x, None, library_in(DeviceOrder(1))) is None
    assert not driver.launches


def test_exact_is_fused_in_the_order_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, x, bias = weight(64, 512), numbers(2, 3, 512), numbers(64, seed=4)
    frame, driver = frame_of(dense, 8), StandIn()
    opened = DeviceFrame(frame, driver=driver)
    assert opened.product is not None  # its list is made
    for name in ("opened_anywhere", "ready_to_multiply"):
        monkeypatch.setattr(ops, name, lambda _: opened)

    def found(mode: str, inputs: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        driver.launches.clear()
        result = ops.linear_on_device(inputs, frame, torch.bfloat16, (64, 512), bias, mode)
        return result, [each.kernel.header for each in driver.launches]

    result, headers = found("fused", x)
    usual = product_of(usual_order(512), x.view(6, 512), dense, bias, torch.bfloat16).view(2, 3, 64)
    assert same_bits(result, usual)
    assert headers == ["thin.cuh"]
    for library, with_what in ((library_in(DeviceOrder(1, two=True)), ["thin.cuh"]), (linear, ["words.cuh"])):
        monkeypatch.setattr(frame_module, "library_order", functools.partial(library_order, library=library))
        found("exact", x)  # tries
        result, headers = found("exact", x)
        assert same_bits(result, library(x, dense, bias))
        assert headers == with_what
    many = numbers(65, 512)
    result, headers = found("fused", many)
    assert same_bits(result, linear(many, dense, bias))
    assert headers == ["words.cuh"]
