"""Models whose weights stay on the host: the bits of the dense model on the device, whatever the streams do."""

from __future__ import annotations

import copy
import io
import logging
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tensorwire  # noqa: E402
from tensorwire.torch import CompressedTensor, compress_module, offload, prepare, set_linear_mode  # noqa: E402
from tensorwire.torch.offloading import Offload  # noqa: E402
from tests.support.disguised import DEVICE  # noqa: E402
from tests.support.linear_models import chain, inputs, same  # noqa: E402
from tests.support.streams import LateDevice  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDTH, LAYERS = 128, 6
COPIES = 1  # the number of the stream that copies


class FakePinning:
    """Pins what it is asked to, as far as it goes."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.left = limit
        self.pinned: dict[int, int] = {}

    def pin(self, address: int, nbytes: int) -> str | None:
        if nbytes > self.left:
            return "the system says no"
        self.left -= nbytes
        self.pinned[address] = nbytes
        return None

    def unpin(self, address: int) -> None:
        self.left += self.pinned.pop(address)


def layers(mode: str = "exact", num_layers: int = LAYERS) -> nn.Sequential:
    return set_linear_mode(compress_module(chain(WIDTH, num_layers), min_numel=1), mode)


def frames_nbytes(model: nn.Module) -> int:
    return sum(weight.frame.numel() for weight in set(model.parameters()) if isinstance(weight, CompressedTensor))


@contextmanager
def on_device(model: nn.Module, seed: int = 0, memory: int = 0) -> Iterator[tuple[LateDevice, Offload]]:
    with torch.no_grad(), LateDevice(seed) as device:
        handle = Offload(model, DEVICE, memory, device.streams, FakePinning())
        try:
            yield device, handle
        finally:
            handle.close()


def run(model: Any, *xs: Any) -> list[Any]:
    """Outputs, read when all have been asked for."""
    outputs = [model(x.to(DEVICE)) for x in xs]
    return [output.cpu() for output in outputs]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """What is computed is small, and threads would wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def reference() -> nn.Sequential:
    return chain(WIDTH, LAYERS)


def expected(reference: Any, xs: Any, mode: str) -> list[Any]:
    """The dense model's on the device; in mode fused, those of compressed weights there."""
    model = copy.deepcopy(reference) if mode == "exact" else layers(mode)
    with torch.no_grad(), LateDevice(0):
        return run(model.to(DEVICE), *xs)


@pytest.mark.parametrize("mode", ["exact", "fused"])
def test_bits_do_not_depend_on_when_streams_run(mode: str, reference: Any) -> None:
    xs = [inputs(count, WIDTH) for count in (1, 1, 20, 1, 2)]
    wanted = expected(reference, xs, mode)
    model = layers(mode)
    for seed in range(3):
        with on_device(model, seed):
            assert all(map(same, run(model, *xs), wanted)), seed


@pytest.mark.parametrize(
    ("mode", "waiting", "for_"),
    [("exact", 0, 2), ("exact", 1, 2), ("exact", 2, 1), ("exact", 2, 0), ("fused", 0, 1), ("fused", 1, 0)],
)
def test_each_event_is_needed(mode: str, waiting: int, for_: int, reference: Any) -> None:
    """Streams: 0 is the caller's, 1 copies, 2 decodes. Without one kind of event some seed is wrong."""
    xs = [inputs(1, WIDTH)] * 4
    wanted = expected(reference, xs, mode)
    model = layers(mode)
    for seed in range(40):
        with on_device(model, seed) as (device, _):
            device.streams.forgotten.add((waiting, for_))
            if not all(map(same, run(model, *xs), wanted)):
                return
    pytest.fail("nothing needs this event, or the double cannot see that it is missing")


@pytest.mark.parametrize("mode", ["exact", "fused"])
def test_a_pass_copies_each_weight_once_compressed(mode: str) -> None:
    model = layers(mode)
    dense = sum(weight.numel() * 2 for weight in model.parameters())
    with on_device(model) as (device, handle):
        run(model, *[inputs(1, WIDTH)] * 2)
        before = device.streams.copied_nbytes[COPIES]
        run(model, *[inputs(1, WIDTH)] * 5)
        copied = (device.streams.copied_nbytes[COPIES] - before) / 5
    assert copied == frames_nbytes(model) == handle.nbytes
    assert copied < dense / 1.45


def test_memory_of_the_device_is_used_over_and_over() -> None:
    model = layers()
    with on_device(model) as (device, _):
        run(model, *[inputs(1, WIDTH)] * 2)
        device.calls.clear()
        run(model, inputs(1, WIDTH))
        assert not [name for name in device.calls if "empty" in name], "all memory was there before"
        assert device.calls["tensorwire: open"] == 0
        assert device.calls["tensorwire: decode"] == LAYERS


@pytest.mark.parametrize(
    "order",
    [
        [5, 4, 3, 2, 1, 0], [0, 0, 0], [3, 1, 3, 1],
        *(pytest.param(order, marks=pytest.mark.slow) for order in ([2], [0, 2, 4, 1, 3, 5])),
    ],
)  # fmt: skip
def test_another_order_than_before(order: list[int], reference: Any) -> None:
    model = layers()
    x = inputs(1, WIDTH)
    wanted = [expected(layer, [x], "exact")[0] for layer in reference]
    for seed in range(2):
        with on_device(model, seed):
            run(model, x, x)
            for index in [*order, *range(LAYERS)]:
                assert same(run(model[index], x)[0], wanted[index])


def test_a_layer_within_a_layer_and_an_error(reference: Any) -> None:
    """More weights in use than there is room for: they get memory of their own."""
    x = inputs(1, WIDTH)
    (wanted,) = expected(reference, [x], "exact")
    model = layers()
    with on_device(model) as (device, handle):
        run(model, x, x)
        streamed = handle._streamed
        assert streamed is not None
        leases = [streamed.take(model[index].weight._elsewhere._weight, decoded=True) for index in (0, 1, 2)]
        assert [lease is None for lease in leases] == [False, False, True]
        assert same(run(model, x)[0], wanted)
        with pytest.raises(ZeroDivisionError), leases[0]:
            raise ZeroDivisionError
        assert same(run(model, x)[0], wanted)
        del leases  # as an interrupt before a ``with`` block
        before = device.streams.copied_nbytes[COPIES]
        assert same(run(model, x, x)[1], wanted)
        assert device.streams.copied_nbytes[COPIES] - before >= 2 * handle.nbytes
        with pytest.raises(RuntimeError):
            model(inputs(1, 7).to(DEVICE))
        assert same(run(model, x)[0], wanted)


class Failing:
    """A call that fails once."""

    def __init__(self, number: int, error: BaseException) -> None:
        self.calls, self._number, self._error = 0, number, error

    def __call__(self, what: str) -> None:
        self.calls += 1
        if self.calls == self._number:
            raise self._error


def test_no_memory_or_an_interrupt_in_the_middle(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs(1, WIDTH)
    (wanted,) = expected(reference, [x], "exact")
    model = layers()
    no_memory, interrupt = torch.OutOfMemoryError("no memory"), KeyboardInterrupt()
    for number, error in ((1, interrupt), (5, no_memory), (9, interrupt), (13, no_memory)):
        with on_device(model) as (device, _):
            run(model, x, x)
            failing = Failing(number, error)
            with monkeypatch.context() as patch:
                patch.setattr(device, "launched", failing)
                for _ in range(3):
                    with suppress(type(error)):
                        assert same(run(model, x)[0], wanted)
                assert failing.calls >= number
            assert same(run(model, x, x)[1], wanted)


def test_no_memory_on_the_device_leaves_the_model_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers()
    before = list(model.parameters())

    def failing(*args: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr("tensorwire.torch.offloading.streamed._Ends", failing)
    pinning = FakePinning()
    with torch.no_grad(), LateDevice(0) as device, pytest.raises(torch.OutOfMemoryError):
        Offload(model, DEVICE, 0, device.streams, pinning)
    assert not pinning.pinned
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}
    assert all(same(new.decode(), old.decode()) for new, old in zip(model.parameters(), before, strict=True))


def test_several_threads_and_two_models(reference: Any) -> None:
    x = inputs(1, WIDTH)
    (wanted,) = expected(reference, [x], "exact")
    first, second = layers(), layers()
    with on_device(first) as (device, _):
        other = Offload(second, DEVICE, 0, device.streams, FakePinning())
        for _ in range(3):
            found = run(first, x) + run(second, x)
            assert all(same(output, wanted) for output in found)
        entered = threading.Event()
        streamed = other._streamed
        assert streamed is not None
        lease = streamed.take(second[0].weight._elsewhere._weight, decoded=True)

        def use() -> None:  # torch's mode is the main thread's, so this one uses the lease alone
            entered.set()
            assert lease is not None
            with lease:
                pass

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert entered.is_set()
        assert same(run(second, x)[0], wanted)
        other.close()
        assert same(run(first, x)[0], wanted)


def test_the_model_is_on_the_host_again(reference: Any) -> None:
    model = layers()
    model.register_buffer("scale", torch.ones(3))
    model[0].bias = nn.Parameter(torch.zeros(WIDTH).bfloat16())
    weight, bias = model[1].weight, model[0].bias
    pinning = FakePinning()
    with torch.no_grad(), LateDevice(0) as device:
        handle = Offload(model, DEVICE, 0, device.streams, pinning)
        twin = model[1].weight.detach()
        assert {tensor.device for tensor in (*model.parameters(), *model.buffers())} == {DEVICE}
        assert pinning.pinned
        assert handle.pinned_nbytes == handle.nbytes
        handle.close()
        handle.close()
        assert not pinning.pinned
        assert twin.device == DEVICE
        assert same(twin.decode().cpu(), weight.decode()), "what is left of it comes by itself"
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"cpu"}
    assert same(model[1].weight.decode(), reference[1].weight)
    assert model[0].bias.requires_grad == bias.requires_grad


def test_weights_that_fit_stay_on_the_device() -> None:
    x = inputs(1, WIDTH)
    (wanted,) = expected(chain(WIDTH, 16), [x], "exact")
    model = layers(num_layers=16)
    size = frames_nbytes(model)
    largest = max(weight.frame.numel() for weight in model.parameters())
    least = 2 * (largest + 512) + 2 * WIDTH * WIDTH * 2
    kept = []
    for memory in (0, least + size // 2, 1 << 30):
        with on_device(model, memory=memory) as (_, handle):
            assert same(run(model, x, x)[1], wanted)
            assert handle.nbytes + handle.resident_nbytes == size
            kept.append(handle.resident_nbytes)
            places = [weight._elsewhere is None for weight in model.parameters()]
    assert kept[0] == 0
    assert size / 4 < kept[1] <= size // 2
    assert kept[2] == size
    assert all(places)


class Lookup(nn.Module):
    """An embedding, whose weight is the head's too, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(300, 64)
        self.conv = nn.Conv1d(64, 64, 3, padding=1)
        self.head = nn.Linear(64, 300, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Any) -> Any:
        return self.head(self.conv(self.embedding(ids).transpose(1, 2)).transpose(1, 2))


def test_rows_convolutions_and_tied_weights() -> None:
    ids = torch.tensor([[0, 299, 5, 6, 7, 5], [1, 2, 3, 4, 5, 298]])
    dense = Lookup().bfloat16().eval()
    model = compress_module(copy.deepcopy(dense), min_numel=1000)
    with torch.no_grad(), LateDevice(0):
        (wanted,) = run(copy.deepcopy(dense).to(DEVICE), ids)
    for seed in range(8):
        with on_device(model, seed):
            assert model.head.weight is model.embedding.weight
            assert all(same(found, wanted) for found in run(model, ids, ids, ids))
            weight = model.embedding.weight
            assert same(weight[3:9].cpu(), dense.embedding.weight[3:9])
            assert same(weight.t().decode().cpu(), dense.embedding.weight.t())
            with pytest.raises(IndexError, match="out of range"):
                model(torch.tensor([[300]]).to(DEVICE))
    assert model.head.weight is model.embedding.weight


def test_adapters_train(reference: Any) -> None:
    class Adapted(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.base, self.adapter = base, nn.Linear(WIDTH, WIDTH, bias=False).bfloat16()

        def forward(self, x: Any) -> Any:
            return self.base(self.adapter(x))

    x = inputs(3, WIDTH)
    gradients = []
    for compressed in (False, True):
        model = Adapted(layers() if compressed else copy.deepcopy(reference))
        with LateDevice(1) as device:
            handle = Offload(model, DEVICE, 0, device.streams, FakePinning()) if compressed else model.to(DEVICE)
            for _ in range(2):
                model(x.to(DEVICE)).float().square().sum().backward()
            gradients.append(model.adapter.weight.grad.cpu())
            if compressed:
                handle.close()
    assert same(*gradients)


def test_what_leaves_the_model() -> None:
    model = layers(num_layers=2)
    dense = chain(WIDTH, 2)
    with on_device(model):
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        assert len(file.getvalue()) < frames_nbytes(model) + 20_000, "not all of the host's memory"
        twin = copy.deepcopy(model)
        assert twin[0].weight.frame.device == twin[0].weight.device == DEVICE
        assert same(twin[0].weight.decode().cpu(), dense[0].weight)
        assert model.to(DEVICE)[0].weight._elsewhere is not None
        assert same(model[0].weight.float().cpu(), dense[0].weight.float())
    file.seek(0)
    read = torch.load(file, weights_only=True)["0.weight"]
    assert read.device.type == "cpu"
    assert same(read.decode(), dense[0].weight)


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("moved to cpu", lambda model: model.to("cpu")),
        ("shared with other processes", lambda model: model.share_memory()),
        ("written to", lambda model: model.load_state_dict(chain(WIDTH, LAYERS).state_dict())),
        ("written to", lambda model: model[0].weight.zero_()),
        ("compiled", lambda model: model[0].weight.__tensor_flatten__()),
    ],
)
def test_what_is_refused(what: str, call: Callable[[Any], Any], reference: Any) -> None:
    x = inputs(1, WIDTH)
    (wanted,) = expected(reference, [x], "exact")
    model = layers()
    with on_device(model):
        with pytest.raises(Exception, match=f"offloaded cannot be {what}: close"):
            call(model)
        assert same(run(model, x)[0], wanted)


def test_experts_and_prepare() -> None:
    """What looks for frames on a device finds none."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.weight = nn.Parameter((torch.randn(4, 96, 64, generator=generator) / 8).bfloat16())

        def forward(self, ids: Any) -> Any:
            return torch.bmm(self.weight[ids], self.weight.new_ones(len(ids), 64, 1))

    ids = torch.tensor([3, 0, 3])
    dense = Experts().requires_grad_(False)
    model = set_linear_mode(compress_module(copy.deepcopy(dense), min_numel=1), "fused")
    with torch.no_grad(), LateDevice(0):
        (wanted,) = run(copy.deepcopy(dense).to(DEVICE), ids)
    with on_device(model):
        assert prepare(model).frames == 0
        assert all(same(found, wanted) for found in run(model, ids, ids))


def test_a_graph_that_is_captured_is_refused() -> None:
    model = layers()
    with on_device(model) as (device, _):
        device.streams.capturing = True
        with pytest.raises(RuntimeError, match="a graph is captured"):
            model(inputs(1, WIDTH).to(DEVICE))
        device.streams.capturing = False


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="decode_ahead is for that"):
        offload(layers(), "cpu")
    with pytest.raises(ValueError, match="memory from 0 on"):
        offload(layers(), memory=-1)
    with LateDevice(0) as device:
        arguments = DEVICE, 0, device.streams, FakePinning()
        with pytest.raises(ValueError, match="compress_module"):
            Offload(chain(WIDTH, 1), *arguments)
        hooked = layers()
        hooked[1]._hf_hook = object()
        with pytest.raises(ValueError, match="module '1' has hooks"):
            Offload(hooked, *arguments)
        moved = layers()
        moved[2].to("meta")
        with pytest.raises(ValueError, match=r"got 2\.weight on meta"):
            Offload(moved, *arguments)
        handle = Offload(layers(), *arguments)
        with pytest.raises(TypeError, match="call offload with the other model"):
            copy.copy(handle)


def test_a_damaged_weight_is_named(tmp_path: Any) -> None:
    tensorwire.save_file(chain(512, 2).state_dict(), tmp_path / "model")
    data = bytearray((tmp_path / "model").read_bytes())
    data[-100] ^= 1
    (tmp_path / "model").write_bytes(data)
    model = chain(512, 2)
    state = tensorwire.load_file(tmp_path / "model", framework="pt", compressed=True)
    model.load_state_dict(state, assign=True)
    with LateDevice(0) as device, pytest.raises(tensorwire.CorruptDataError, match=r"tensor '1\.weight', block"):
        Offload(model, DEVICE, 0, device.streams, FakePinning())


def test_memory_that_cannot_be_pinned_is_said(caplog: pytest.LogCaptureFixture, reference: Any) -> None:
    x = inputs(1, WIDTH)
    (wanted,) = expected(reference, [x], "exact")
    model = layers()
    with caplog.at_level(logging.WARNING, "tensorwire"), torch.no_grad(), LateDevice(0) as device:
        handle = Offload(model, DEVICE, 0, device.streams, FakePinning(limit=1000))
        assert handle.pinned_nbytes == 0
        assert same(run(model, x)[0], wanted)
        handle.close()
    assert (
        f"{handle.nbytes} of {handle.nbytes} bytes of weights could not be pinned (the system says no)" in caplog.text
    )
