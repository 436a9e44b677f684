"""Weights that are decoded before they are needed: the bits stay, whatever order, thread, gradient or error comes."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from tensorwire.torch import CompressedTensor, compress_module, decode_ahead, decompress_module, set_linear_mode  # noqa: E402
from tensorwire.torch.frames.open_frame import OpenFrame, opened  # noqa: E402
from tensorwire.torch.products import linear  # noqa: E402
from tests.support.linear_models import chain, inputs, same  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from tensorwire.torch import DecodeAhead


@pytest.fixture(autouse=True)
def no_order_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """In a known order no weight is decoded, so there is nothing to do ahead."""
    with monkeypatch.context() as patch:
        patch.setattr(linear, "linear_orders", lambda dtype: [])
        linear._choose.cache_clear()
        yield patch
    linear._choose.cache_clear()


@pytest.fixture(scope="module")
def reference() -> nn.Sequential:
    return chain()


@pytest.fixture
def model() -> nn.Module:
    return compress_module(chain())


@pytest.fixture
def ahead(model: nn.Module) -> Iterator[DecodeAhead]:
    with decode_ahead(model) as handle:
        yield handle


def settle(handle: DecodeAhead) -> None:
    """Wait until all is decoded that is to be: as while a layer computes for long."""
    while any(not entry.over and not entry.ready for entry in list(handle._ahead._entries)):
        threading.Event().wait(0.001)


def hits(handle: DecodeAhead, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows by one for each use: whether its weight was decoded ahead."""
    found: list[bool] = []
    take = handle._ahead.take

    def counted(key: Any) -> Any:
        settle(handle)
        lease = take(key)
        found.append(lease is not None)
        return lease

    monkeypatch.setattr(handle._ahead, "take", counted)
    return found


def test_the_second_pass_finds_all_weights_decoded(
    model: Any, reference: Any, ahead: DecodeAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hits(ahead, monkeypatch)
    for count in (1, 1, 40):
        assert same(model(inputs(count)), reference(inputs(count)))
    assert found == [False] * 6 + [False] + [True] * 11, "that the first follows the last is learned by the second pass"


def test_nothing_is_decoded_ahead_in_a_known_order(
    model: Any, reference: Any, ahead: DecodeAhead, monkeypatch: pytest.MonkeyPatch, no_order_is_known: Any
) -> None:
    no_order_is_known.undo()
    linear._choose.cache_clear()
    if not linear.is_in_known_order(inputs(), reference[0].weight.shape, None):
        pytest.skip("torch has an order here that we have no kernels for")
    found = hits(ahead, monkeypatch)
    for count in (1, 8, 1):
        assert same(model(inputs(count)), reference(inputs(count)))
    assert found == []


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_in_every_mode_of_autograd(model: Any, reference: Any, ahead: DecodeAhead, context: Any) -> None:
    with context():
        for _ in range(3):
            settle(ahead)
            assert same(model(inputs()), reference(inputs()))


def test_backward_passes_use_nothing_that_is_used_over(model: Any, reference: Any, ahead: DecodeAhead) -> None:
    """Many forward passes before the first backward one."""
    gradients = []
    for layers in (reference, model):
        xs = [inputs(count).requires_grad_() for count in (1, 2, 9)]
        outputs = []
        for x in xs:
            settle(ahead)
            outputs.append(layers(x))
        for output in reversed(outputs):
            output.float().square().sum().backward()
        gradients.append([x.grad for x in xs])
    for ours, theirs in zip(*gradients, strict=True):
        assert same(ours, theirs)


def test_another_order_than_before(model: Any, reference: Any, ahead: DecodeAhead) -> None:
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [0, 0, 0], [3, 1, 3, 1], [2], [0, 1, 2, 3, 4, 5]):
        for index in order:
            settle(ahead)
            assert same(model[index](inputs()), reference[index](inputs()))


def test_an_error_in_a_layer_ends_nothing(model: Any, reference: Any, ahead: DecodeAhead) -> None:
    for _ in range(2):
        model(inputs())
    for _ in range(3):
        with pytest.raises(RuntimeError):
            model[0](inputs(1, 7))  # which torch refuses
        assert same(model(inputs()), reference(inputs()))


def test_a_layer_within_a_layer(model: Any, reference: Any, ahead: DecodeAhead) -> None:
    """A hook that runs the model once more while it runs."""
    expected, inner = reference(inputs()), reference(inputs(2))
    depth = 0

    def hook(module: Any, args: Any) -> None:
        nonlocal depth
        if depth == 0:
            depth += 1
            try:
                assert same(model(inputs(2)), inner)
            finally:
                depth -= 1

    model[3].register_forward_pre_hook(hook)
    for _ in range(4):
        assert same(model(inputs()), expected)


def test_several_threads(model: Any, reference: Any, ahead: DecodeAhead) -> None:
    expected = reference(inputs())
    with ThreadPoolExecutor(3) as pool:
        assert all(same(found, expected) for found in pool.map(lambda _: model(inputs()), range(30)))


def test_a_weight_that_is_replaced_meanwhile(model: Any, reference: Any, ahead: DecodeAhead) -> None:
    for _ in range(2):
        model(inputs())
    settle(ahead)
    with torch.no_grad():
        model[2].weight.copy_(reference[4].weight)
    x = inputs()
    assert same(model[2](x), reference[4](x))


def test_it_ends(model: Any, reference: Any) -> None:
    handle = decode_ahead(model)
    for _ in range(2):
        model(inputs())
    handle.close()
    handle.close()
    assert opened(model[0].weight.frame).ahead is None
    assert handle._ahead._memory is None
    assert same(model(inputs()), reference(inputs()))


@pytest.mark.parametrize(("number", "expected"), [(3, 3), (None, 5)])
def test_so_many_threads_decode_ahead(
    model: Any, monkeypatch: pytest.MonkeyPatch, number: int | None, expected: int
) -> None:
    """By default, those that torch leaves of the cores."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(torch.get_num_threads() + 5))
    asked = []

    def decoded(frame: OpenFrame, first: int, out: Any, threads: int | None = None) -> None:
        asked.append(threads)
        decode(frame, first, out, threads)

    decode = OpenFrame.decode
    monkeypatch.setattr(OpenFrame, "decode", decoded)
    with decode_ahead(model, threads=number) as handle:
        for _ in range(2):
            model(inputs())
            settle(handle)
    assert expected in asked


def test_the_last_one_of_two_counts(model: Any, reference: Any) -> None:
    first, second = decode_ahead(model), decode_ahead(model)
    first.close()
    for _ in range(2):
        assert same(model(inputs()), reference(inputs()))
    assert opened(model[0].weight.frame).ahead is second._ahead
    second.close()


def test_a_model_without_compressed_weights() -> None:
    model = decompress_module(compress_module(chain()))
    with decode_ahead(model):
        model(inputs())


def test_fused_layers_are_left_alone(model: Any, ahead: DecodeAhead, monkeypatch: pytest.MonkeyPatch) -> None:
    set_linear_mode(model, "fused")
    found = hits(ahead, monkeypatch)
    expected = model(inputs())
    assert same(model(inputs()), expected)
    assert found == []


def test_a_frame_outlives_its_tensor_for_who_decodes_it() -> None:
    """As the thread does that decodes ahead, when a model goes away meanwhile."""
    dense = torch.randn(2048, 4096).to(torch.bfloat16)
    frame = CompressedTensor.from_dense(dense).frame
    reader, out = opened(frame), torch.empty_like(dense)
    gone, freed = weakref.ref(frame), weakref.ref(reader)
    del frame
    assert gone() is None
    reader.decode(0, out)
    assert same(out, dense)
    del reader
    assert freed() is None
