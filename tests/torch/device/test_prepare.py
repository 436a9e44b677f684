"""`prepare`: frames are opened, and weights that meet the same input are multiplied together, with the same results."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.8")

from torch import nn  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

from tensorwire.torch import compress_module, prepare, prepared, set_linear_mode  # noqa: E402
from tensorwire.torch.device import frame  # noqa: E402
from tensorwire.torch.device.orders import DeviceOrder  # noqa: E402
from tensorwire.torch.frames import open_frame  # noqa: E402
from tensorwire.torch.frames.turn import Turn  # noqa: E402
from tensorwire.torch.products import joint  # noqa: E402
from tests.support.disguised import DEVICE, DisguisedDevice, DisguisedFrame  # noqa: E402
from tests.torch.device.stand_in import StandIn  # noqa: E402


class Attention(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.q_proj = nn.Linear(256, 512, bias=bias)
        self.k_proj = nn.Linear(256, 256, bias=bias)
        self.v_proj = nn.Linear(256, 256, bias=False)
        self.o_proj = nn.Linear(512, 256, bias=False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), nn.Module()
        self.mlp.gate_proj = nn.Linear(256, 512, bias=False)
        self.mlp.up_proj = nn.Linear(256, 512, bias=False)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[DisguisedDevice]:
    with DisguisedDevice() as found, torch.no_grad():
        monkeypatch.setattr(joint, "turn_of", lambda device: Turn(found.stream, found.capture))
        monkeypatch.setattr(open_frame, "is_capturing", lambda device: found.capture > 0)
        yield found


@pytest.fixture
def block(device: DisguisedDevice) -> nn.Module:
    torch.manual_seed(0)
    return compress_module(Block().bfloat16(), min_numel=1024, linear_mode="fused").to(DEVICE)


@pytest.fixture
def x(device: DisguisedDevice) -> torch.Tensor:
    return torch.randn(1, 3, 256, generator=torch.Generator().manual_seed(1)).bfloat16().to(DEVICE)


def alone(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """What a layer computes on its own: with an input that nobody else gets."""
    return layer(x.clone()).cpu()


def products(device: DisguisedDevice) -> int:
    return device.calls["tensorwire: product"]


def test_what_it_says(block: nn.Module, device: DisguisedDevice) -> None:
    found = prepare(block)
    weights = [parameter for parameter in block.parameters() if parameter.dim() == 2]
    assert found.frames == device.calls["tensorwire: open"] == 6
    assert found.nbytes == sum(weight.frame.numel() for weight in weights)
    assert found.dense_nbytes == sum(2 * weight.numel() for weight in weights)
    assert found.joined == (
        ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        ("mlp.gate_proj", "mlp.up_proj"),
    )
    assert str(found) == (
        f"6 frames are open, {found.nbytes:,} bytes for {found.dense_nbytes:,}; 5 weights in 2 groups are multiplied "
        "together"
    )


def test_twice_is_once(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    first, groups = prepare(block), open_frame.opened_there(block.mlp.up_proj.weight.frame).member
    device.calls.clear()
    assert prepare(block) == first
    assert not device.launches
    assert open_frame.opened_there(block.mlp.up_proj.weight.frame).member == groups


def test_weights_that_meet_an_input_are_one_launch(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    layers = block.attention.q_proj, block.attention.k_proj, block.attention.v_proj
    expected = [alone(layer, x) for layer in layers]
    prepare(block)
    device.calls.clear()
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        found = {number: layers[number](x) for number in order}
        assert all(torch.equal(found[number].cpu(), expected[number]) for number in order)
        assert all(found[number].is_contiguous() for number in order)
    assert products(device) == 3
    assert joint._waiting.parts is None  # nothing is kept


def test_an_input_that_was_written_to(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    for write in (lambda: x.mul_(2), lambda: x[0, 1].zero_(), lambda: x.view(-1).add_(1), lambda: x.detach().neg_()):
        prepare(block)
        block.attention.q_proj(x)
        write()
        found = block.attention.v_proj(x).cpu()
        assert torch.equal(found, alone(block.attention.v_proj, x))


def test_no_other_input_comes_to_lie_where_one_was(block: nn.Module, device: DisguisedDevice) -> None:
    """Its memory is kept as long as a part of its products waits."""
    prepare(block)
    x = torch.ones(1, 256, dtype=torch.bfloat16, device=DEVICE)
    storage = StorageWeakRef(x.untyped_storage())
    block.attention.q_proj(x)
    del x
    gc.collect()
    assert not storage.expired()
    block.attention.o_proj(torch.ones(1, 512, dtype=torch.bfloat16, device=DEVICE))
    gc.collect()
    assert storage.expired()


def test_parts_of_one_tensor_are_other_inputs(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    prepare(block)
    for other in (x[:, 1:], x[:, :1], x[:, 0:3:2], x):
        block.attention.k_proj(x)
        block.attention.q_proj(x[:, :2])
        assert torch.equal(block.attention.v_proj(other).cpu(), alone(block.attention.v_proj, other))


@pytest.mark.parametrize("what", ["stream", "capture"])
def test_another_stream_or_graph(what: str, block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    """A result of another stream may not be there yet, and that of another graph is not computed again."""
    prepare(block)
    device.calls.clear()
    block.attention.q_proj(x)
    setattr(device, what, getattr(device, what) + 1)
    block.attention.k_proj(x)
    assert products(device) == 2


def test_each_thread_has_its_own(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    prepare(block)
    device.calls.clear()
    block.attention.q_proj(x)

    def work() -> None:
        with device, torch.no_grad():
            block.attention.k_proj(x)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    block.attention.v_proj(x)
    assert products(device) == 2


def test_many_inputs_are_multiplied_one_by_one(block: nn.Module, device: DisguisedDevice) -> None:
    prepare(block)
    device.calls.clear()
    x = torch.ones(9, 256, dtype=torch.bfloat16, device=DEVICE)
    for layer in (block.attention.q_proj, block.attention.k_proj):
        layer(x)
    assert device.calls["tensorwire: decode"] == 2
    assert not products(device)


def test_without_counts_of_writes_nothing_is_kept(block: nn.Module, device: DisguisedDevice) -> None:
    """Torch counts none for tensors of inference mode."""
    prepare(block)
    device.calls.clear()
    with torch.inference_mode():
        x = torch.ones(1, 256, dtype=torch.bfloat16, device=DEVICE)
        block.attention.q_proj(x)
        x.zero_()
        assert torch.equal(block.attention.v_proj(x).cpu(), torch.zeros(1, 256, dtype=torch.bfloat16))
    assert products(device) == 2


def test_biases(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    """A bias is added before a result is rounded, so it is among what was computed along."""
    prepare(block)
    attention = block.attention
    attention.q_proj(x)
    attention.k_proj.bias.add_(1)
    assert torch.equal(attention.k_proj(x).cpu(), alone(attention.k_proj, x))
    attention.k_proj.bias = nn.Parameter(attention.k_proj.bias * 3)
    for layer in (attention.q_proj, attention.k_proj):
        assert torch.equal(layer(x).cpu(), alone(layer, x))
    prepare(block)  # with the new one
    device.calls.clear()
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        layer(x)
    assert products(device) == 1


def test_a_result_is_given_once(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    prepare(block)
    block.attention.q_proj(x)
    first = block.attention.k_proj(x)
    expected = first.cpu()
    first.zero_()
    assert torch.equal(block.attention.k_proj(x).cpu(), expected)


def test_derivatives(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    attention = block.attention
    with torch.enable_grad():
        results = []
        for _ in range(2):
            leaf = x.clone().requires_grad_()
            device.calls.clear()
            parts = [layer(leaf) for layer in (attention.q_proj, attention.k_proj, attention.v_proj)]
            results.append((products(device), [part.detach().cpu() for part in parts]))
            sum((part * part).sum() for part in parts).backward()
            results[-1][1].append(leaf.grad.cpu())
            prepare(block)
    (apart, expected), (together, found) = results
    assert (apart, together) == (3, 1)
    assert all(map(torch.equal, found, expected))


def test_a_wrong_guess_is_given_up(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    """Cross-attention: query meets another input than key and value."""
    prepare(block)
    for _ in range(3):
        device.calls.clear()
        block.attention.q_proj(x)
        block.attention.o_proj(torch.ones(1, 512, dtype=torch.bfloat16, device=DEVICE))
    member = open_frame.opened_there(block.attention.q_proj.weight.frame).member
    assert not member.group.is_open
    assert joint._waiting.parts is None


def test_a_weight_that_was_replaced_is_freed(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    prepare(block)
    other = compress_module(Attention().bfloat16(), min_numel=1024, linear_mode="fused").to(DEVICE)
    block.attention.k_proj = other.k_proj
    gc.collect()
    member = open_frame.opened_there(block.attention.q_proj.weight.frame).member
    assert not member.group.is_open
    for layer in (block.attention.q_proj, block.attention.k_proj, block.attention.v_proj):
        assert torch.equal(layer(x).cpu(), alone(layer, x))


def test_modes(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    set_linear_mode(block, "exact")
    assert prepare(block).joined == ()
    set_linear_mode(block, "fused")
    assert len(prepare(block).joined) == 2
    block.attention.v_proj.weight.set_linear_mode("exact")
    block.attention.q_proj(x)
    device.calls.clear()
    block.attention.v_proj(x)
    assert device.calls["tensorwire: decode"] == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are compiled with g++ here")
def test_exact_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one by one where weights have unlike orders, which shows when they meet."""
    orders = {512: DeviceOrder(1), 256: DeviceOrder(1)}
    monkeypatch.setattr(frame, "library_order", lambda product, x, bias: orders[product.rows])
    torch.manual_seed(0)
    driver = StandIn()
    with DisguisedDevice(driver), torch.no_grad():
        model = compress_module(Attention().bfloat16(), min_numel=1024, profile="resident").to(DEVICE)
        layers = model.q_proj, model.k_proj, model.v_proj
        for rows, order, launches in (
            (256, DeviceOrder(1), [1, 1]),
            (256, DeviceOrder(1, two=True), [3, 3]),
            (512, DeviceOrder(1, two=True), [1]),
        ):
            orders[rows] = order
            x = torch.randn(len(launches), 3, 256).bfloat16().to(DEVICE)
            expected = [alone(layer, x) for layer in layers]
            assert prepare(model).joined == ()
            for count in launches:
                driver.launches.clear()
                found = [layer(x) for layer in layers]
                assert [each.kernel.header for each in driver.launches] == ["thin.cuh"] * count
                assert all(map(torch.equal, [each.cpu() for each in found], expected))
    assert joint._waiting.parts is None


def test_a_graph_that_is_captured_first(block: nn.Module, device: DisguisedDevice, x: torch.Tensor) -> None:
    device.capture = 1
    with pytest.raises(
        RuntimeError, match=r"opened while a graph is captured; before that, call tensorwire\.torch\.pre"
    ):
        block.attention.q_proj(x)
    with pytest.raises(RuntimeError, match="while a graph is captured"):
        prepare(block)
    device.capture = 0
    prepare(block)
    device.capture = 2
    for layer in (block.attention.q_proj, block.attention.k_proj, block.attention.v_proj):
        layer(x)


def test_out_of_memory_in_the_middle(
    block: nn.Module, device: DisguisedDevice, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(block.attention.q_proj, x)
    kept = {id(block.attention.q_proj.weight.frame)}

    def fail() -> None:
        if device.calls["tensorwire: open"] == 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    device.before_opening = fail
    with pytest.raises(torch.OutOfMemoryError):
        prepare(block)
    assert {id(frame) for frame in frames(block) if open_frame.is_open(frame)} == kept
    assert torch.equal(block.attention.q_proj(x).cpu(), expected)
    device.before_opening = lambda: None
    assert prepare(block).frames == 6

    def refuse(products: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    set_linear_mode(block, "fused")
    other = compress_module(Block().bfloat16(), min_numel=1024, linear_mode="fused").to(DEVICE)
    with monkeypatch.context() as patch:  # which ends before the device does, and its own patch with it
        patch.setattr(prepared, "_joint", refuse)
        with pytest.raises(torch.OutOfMemoryError):
            prepare(other)
    assert not any(map(open_frame.is_open, frames(other)))


def frames(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.frame for parameter in model.parameters() if parameter.dim() == 2]


def test_models_on_the_cpu_are_left_alone() -> None:
    model = compress_module(Block().bfloat16(), min_numel=1024, linear_mode="fused")
    assert str(prepare(model)) == ("0 frames are open, 0 bytes for 0; 0 weights in 0 groups are multiplied together")


def test_a_frame_without_products(device: DisguisedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DisguisedFrame, "product", None)
    block = compress_module(Block().bfloat16(), min_numel=1024, linear_mode="fused").to(DEVICE)
    assert prepare(block).joined == ()
