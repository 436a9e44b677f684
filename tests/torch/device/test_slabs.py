"""Weights that are decoded slab by slab and multiplied at once: bits, launches, memory, and when that is done."""

from __future__ import annotations

import functools
import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.8")

from torch.nn.functional import linear  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten  # noqa: E402

import tensorwire.torch.device.frame as frame_module  # noqa: E402
from tensorwire.torch import ops  # noqa: E402
from tensorwire.torch.device import library as of_device  # noqa: E402
from tensorwire.torch.device.frame import DeviceFrame  # noqa: E402
from tensorwire.torch.device.library import allows_slabs  # noqa: E402
from tensorwire.torch.device.orders import DeviceOrder  # noqa: E402
from tensorwire.torch.products import slabs  # noqa: E402
from tensorwire.torch.products.slabs import slab_rows  # noqa: E402
from tests.support.disguised import DEVICE, DisguisedDevice, plain  # noqa: E402

from .stand_in import StandIn  # noqa: E402
from .summed import Library, library_in, same_bits  # noqa: E402
from .weights import frame_of, numbers, weight  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are compiled with g++ here")

ROWS, COLUMNS, COUNT = 150, 256, 70
ROW_NBYTES = 2 * COLUMNS
SLAB = 64
SLABS = [(0, 64), (64, 128), (128, ROWS)]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slabs of a weight that is small enough for a test."""
    monkeypatch.setattr(slabs, "_LEAST_NBYTES", 75 * ROW_NBYTES)
    monkeypatch.setattr(slabs, "_ALIGNMENT", 32)


class Case:
    """A weight, opened by the stand-in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: int = ROWS) -> None:
        self.dense, self.driver = weight(rows, COLUMNS, 0.01), StandIn()
        self.frame = frame_of(self.dense, 8)
        self.opened = DeviceFrame(self.frame, driver=self.driver)
        assert self.opened.product is not None  # its list is made
        self.driver.launches.clear()
        monkeypatch.setattr(ops, "ready_to_multiply", lambda _: self.opened)
        monkeypatch.setattr(ops, "opened_anywhere", lambda _: self.opened)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, mode: str) -> torch.Tensor:
        return ops.linear_on_device(x, self.frame, torch.bfloat16, self.dense.shape, bias, mode)

    def headers(self) -> list[str]:
        """The headers of launches since it was last asked."""
        found = [each.kernel.header for each in self.driver.launches]
        self.driver.launches.clear()
        return found


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(monkeypatch)


class Allocated(TorchDispatchMode):
    """Bytes of all memory that torch's operations ask for, as if none were freed."""

    nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        before = {each.untyped_storage().data_ptr() for each in _tensors((args, kwargs))}
        for each in _tensors(result):
            if each.untyped_storage().data_ptr() not in before:
                self.nbytes += each.untyped_storage().nbytes()
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_flatten(values)[0] if isinstance(each, torch.Tensor)]


def by_slabs(x: torch.Tensor, dense: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    parts = [linear(x, dense[i:j], None if bias is None else bias[i:j]) for i, j in SLABS]
    return torch.cat(parts, -1)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(COUNT,), (5, 17), (255,)])
def test_fused_is_a_launch_a_slab(case: Case, shape: tuple[int, ...], biased: bool) -> None:
    x = numbers(*shape, COLUMNS)
    bias = numbers(ROWS, seed=3).requires_grad_() if biased else None
    found = case.multiply(x, bias, "fused")
    assert case.headers() == ["words.cuh"] * len(SLABS)
    assert found.shape == (*shape, ROWS)
    assert found.is_contiguous()
    torch.testing.assert_close(found, by_slabs(x, case.dense, bias).detach(), rtol=0.02, atol=0.02)


def test_memory_is_that_of_one_slab(case: Case) -> None:
    x = numbers(COUNT, COLUMNS)
    with Allocated() as allocated:
        found = case.multiply(x, None, "fused")
    assert allocated.nbytes == SLAB * ROW_NBYTES + found.nbytes
    with Allocated() as allocated:
        case.multiply(numbers(256, COLUMNS), None, "fused")
    assert allocated.nbytes >= case.dense.nbytes


def test_a_device_is_asked_for_little_else_and_never_waited_for() -> None:
    dense, driver = weight(ROWS, COLUMNS, 0.01), StandIn()
    x, frame = numbers(COUNT, COLUMNS), frame_of(dense, 8)
    with DisguisedDevice(driver) as device, torch.no_grad():
        there, inputs = frame.to(DEVICE), x.to(DEVICE)
        arguments = (inputs, there, torch.bfloat16, list(dense.shape), None, "fused")
        torch.ops.tensorwire.linear(*arguments)
        driver.launches.clear()
        device.calls.clear()
        with device.no_waits():
            found = torch.ops.tensorwire.linear(*arguments)
        assert len(driver.launches) == device.calls["aten::mm.out"] == len(SLABS)
        assert device.calls["aten::empty.memory_format"] + device.calls["aten::new_empty"] == 2
        torch.testing.assert_close(plain(found), by_slabs(x, dense, None), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("rows", [64, 75])
def test_a_weight_of_one_slab_is_decoded_at_once(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    case, x = Case(monkeypatch, rows), numbers(COUNT, COLUMNS)
    assert same_bits(case.multiply(x, None, "fused"), linear(x, case.dense))
    assert case.headers() == ["words.cuh"]


@pytest.mark.parametrize("count", [64, 256])
def test_other_counts_are_multiplied_as_before(case: Case, count: int) -> None:
    case.multiply(numbers(count, COLUMNS), None, "fused")
    *_, last = case.headers()  # behind a trial of wgmma, if this process has made none
    assert last in (("thin.cuh", "wgmma.cuh") if count == 64 else ("words.cuh",))


def test_what_torch_refuses_is_refused_in_its_words(case: Case) -> None:
    with pytest.raises(RuntimeError, match="dtype"):
        case.multiply(numbers(COUNT, COLUMNS).float(), None, "fused")
    with pytest.raises(RuntimeError):
        case.multiply(numbers(COUNT, COLUMNS), numbers(ROWS - 1), "fused")


def library(least_rows: int) -> Library:
    """One whose order of summation is another from so many rows on."""
    return lambda x, dense, bias: library_in(DeviceOrder(1, two=len(dense) >= least_rows))(x, dense, bias)


def use(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    """It stands for torch's."""

    def multiply_into(output: torch.Tensor, *arguments: Any) -> None:
        output.copy_(library(*arguments))

    monkeypatch.setattr(slabs, "multiply_into", multiply_into)
    monkeypatch.setattr(ops, "linear", lambda x, dense, bias: library(x, dense, bias))
    monkeypatch.setattr(frame_module, "allows_slabs", functools.partial(allows_slabs, library=library))


@pytest.mark.parametrize("biased", [False, True])
def test_exact_is_by_slabs_where_bits_are_the_same(case: Case, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, bias = numbers(2, 33, COLUMNS), numbers(ROWS, seed=3) if biased else None
    for least_rows, launches in ((1, len(SLABS)), (SLAB, 1), (ROWS, 1)):  # the last slab is smaller
        same = library(least_rows)
        use(monkeypatch, same)
        found = case.multiply(x, bias, "exact")
        assert case.headers() == ["words.cuh"] * launches
        assert same_bits(found, same(x, case.dense, bias))


def test_a_kind_of_product_is_tried_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, same = [], library(1)

    def counted(*arguments: Any) -> torch.Tensor:
        asked.append(len(arguments[1]))
        return same(*arguments)

    monkeypatch.setattr(slabs, "multiply_into", lambda output, *arguments: output.copy_(same(*arguments)))
    x = numbers(COUNT, COLUMNS)
    for inputs, is_new in ((x, True), (x + 1, False), (x[:-1], True), (x.view(10, 7, COLUMNS), True), (x, False)):
        asked.clear()
        assert allows_slabs(inputs, ROWS, SLAB, None, counted)
        assert bool(asked) == is_new
        assert set(asked) <= {ROWS}
    assert not allows_slabs(x.float(), ROWS, SLAB, None, counted)
    assert not allows_slabs(numbers(COLUMNS, COUNT).T, ROWS, SLAB, None, counted)


def test_so_many_numbers_of_inputs_are_tried(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more the weight is decoded as a whole."""
    monkeypatch.setattr(of_device, "_MOST_SLABS", 2)
    use(monkeypatch, library(1))
    for count, slabs_of in ((80, 3), (81, 3), (82, 1), (80, 3), (82, 1)):
        case.multiply(numbers(count, COLUMNS), None, "exact")
        assert case.headers() == ["words.cuh"] * slabs_of


def test_nothing_is_tried_while_a_graph_is_captured(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known is used in the graph."""
    use(monkeypatch, library(1))
    x = numbers(COUNT + 1, COLUMNS)
    found = []
    for capturing in (True, False, True):
        monkeypatch.setattr(of_device, "is_capturing", lambda device, capturing=capturing: capturing)
        found.append(case.multiply(x, None, "exact"))
        assert case.headers() == ["words.cuh"] * (1 if len(found) == 1 else len(SLABS))
    assert all(same_bits(each, found[0]) for each in found)


def test_rows_of_a_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    block, cache = 32768, 50 << 20
    assert slab_rows(4096, 4096, 2, block, cache) == 2048
    assert slab_rows(14336, 4096, 2, block, cache) == 2432  # 6 slabs
    assert slab_rows(4096, 14336, 2, block, cache) == 640
    assert slab_rows(128256, 4096, 2, block, cache) == 2560
    assert slab_rows(1024, 4096, 2, block, cache) == 0
    assert slab_rows(100_000, 4099, 2, block, cache) == 0  # no whole blocks
    for rows, columns, shared in ((9_999, 2560, 0), (65_000, 8192, 126 << 20), (33_333, 11008, 40 << 20)):
        found = slab_rows(rows, columns, 2, block, shared)
        assert found % 128 == found * columns % block == 0
        assert (12 << 20) < found * columns * 2 <= (24 << 20)
