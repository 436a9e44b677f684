"""The layers of the vLLM plug-in on a device, which is a test double, under a platform that says it is NVIDIA's."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("vllm", reason="vLLM is missing, which make vllm installs apart from everything else")

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from tensorwire.torch.integrations import vllm as plugin

from tests.support.disguised import DEVICE, DisguisedDevice, DisguisedFrame
from tests.support.linear_models import same

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS, COLUMNS = 384, 256


def weight() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(ROWS, COLUMNS, generator=generator) * 0.03).bfloat16()


def platform(kind: str) -> Any:
    return SimpleNamespace(is_cpu=lambda: kind == "cpu", is_cuda=lambda: kind == "cuda")


def loaded(method: Any, kind: Callable[..., Any] = LinearBase) -> Any:
    """A layer whose weight vLLM has read."""
    layer = kind.__new__(kind)
    torch.nn.Module.__init__(layer)
    layer.dense_shape, layer.dense_dtype = (ROWS, COLUMNS), torch.bfloat16
    layer.weight = torch.nn.Parameter(weight().to(DEVICE), requires_grad=False)
    method.process_weights_after_loading(layer)
    return layer


@pytest.mark.parametrize("mode", ["exact", "fused"])
def test_nothing_is_opened_and_nobody_waits_after_loading(mode: str) -> None:
    x, ids = torch.randn(3, COLUMNS).bfloat16(), torch.tensor([[0, 5], [ROWS - 1, 7]])
    facts: dict[str, Any] = {}
    method = plugin.CompressedLinearMethod("layer", "resident", mode, facts)
    with torch.no_grad(), DisguisedDevice() as device:
        dense, there, places = weight().to(DEVICE), x.to(DEVICE), ids.to(DEVICE)
        wanted = torch.nn.functional.linear(there, dense).cpu()
        layer = loaded(method)
        assert layer.weight.dtype == torch.uint8
        assert layer.weight.device == DEVICE
        assert layer.weight.numel() < 0.8 * 2 * ROWS * COLUMNS
        device.calls.clear()
        with device.no_waits():
            product, rows = method.apply(layer, there), method.embedding(layer, places)
        assert device.calls["tensorwire: open"] == 0
        assert device.launches == 2, "one for the product or for what it decodes, one for rows"
        found = product.cpu()
        assert same(rows.cpu(), weight()[ids])
    if mode == "exact":
        assert same(found, wanted)
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)
    assert facts == {"tensorwire:layer": [mode, layer.weight.numel()]}


def test_an_embedding_stays_dense_where_no_kernel_takes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DisguisedFrame, "rows", None)
    method = plugin.CompressedLinearMethod("layer", "resident", "exact", {})
    ids, x = torch.tensor([3, 4]), torch.randn(2, COLUMNS).bfloat16()
    with torch.no_grad(), DisguisedDevice():
        layer = loaded(method, VocabParallelEmbedding)
        assert layer.weight.dtype == torch.bfloat16
        assert same(method.embedding(layer, ids.to(DEVICE)).cpu(), weight()[ids])
        assert method.apply(layer, x.to(DEVICE)).shape == (2, ROWS)
        assert loaded(method).weight.dtype == torch.uint8


@pytest.mark.parametrize(("kind", "profile"), [("cpu", "fast"), ("cuda", "resident")])
def test_the_profile_that_is_taken_by_default(kind: str, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "current_platform", platform(kind))
    with set_current_vllm_config(VllmConfig()):
        layer = LinearBase.__new__(LinearBase)
        method = plugin.TensorwireConfig().get_quant_method(layer, "layer")
    assert method._profile == profile


def test_other_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "current_platform", platform("rocm"))
    with set_current_vllm_config(VllmConfig()), pytest.raises(ValueError, match="'weights': 'dense'"):
        plugin.TensorwireConfig().get_quant_method(LinearBase.__new__(LinearBase), "layer")
