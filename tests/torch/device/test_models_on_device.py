"""Whole models on a device: the bits of the dense model there, one launch a product, and no wait for the device."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tensorwire

torch = pytest.importorskip("torch", minversion="2.8")
transformers = pytest.importorskip("transformers")

from functorch.compile import make_boxed_func  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from transformers import CompileConfig  # noqa: E402

from tensorwire.torch import CompressedTensor, inductor, ops, prepare, set_linear_mode  # noqa: E402
from tensorwire.torch.integrations.transformers import TensorwireConfig  # noqa: E402
from tensorwire.torch.products.side_stream import SideStream  # noqa: E402
from tests.support.disguised import DEVICE, DisguisedDevice, step  # noqa: E402
from tests.support.transformer_models import load, save  # noqa: E402
from tests.torch.device.stand_in import StandIn  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own and torch's future

LAYERS = 2
TOKENS = [[1, 5, 9, 200, 31, 7, 12, 500]]
CHOSEN = {"min_numel": 1024}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama, and compressed."""
    path = tmp_path_factory.mktemp("models")
    save("llama", path / "dense")
    tensorwire.compress_checkpoint(path / "dense", path / "packed", profile="resident")
    return path


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[DisguisedDevice]:
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # threads do not know of the device
    with DisguisedDevice() as found, torch.no_grad():
        yield found


def packed(folder: Path, **options: Any) -> Any:
    config = transformers.AutoConfig.from_pretrained(folder / "packed")
    config.quantization_config.update(CHOSEN | options)
    return load(folder / "packed", "llama", config=config, device_map=DEVICE.type)


def tokens() -> torch.Tensor:
    return torch.tensor(TOKENS).to(DEVICE)


def test_exact_logits_are_those_of_the_dense_model(folder: Path, device: DisguisedDevice) -> None:
    dense = load(folder / "dense", "llama", device_map=DEVICE.type)
    model = packed(folder)
    assert model.generation_config.cache_implementation is None
    assert model.generation_config.compile_config is None
    assert torch.equal(model(tokens()).logits.cpu(), dense(tokens()).logits.cpu())
    found, expected = [
        each.generate(tokens(), max_new_tokens=4, do_sample=False, pad_token_id=0).cpu() for each in (model, dense)
    ]
    assert torch.equal(found, expected)
    assert torch.equal(step(model, device).cpu(), step(dense, device).cpu())


def test_a_step_is_one_launch_a_product(folder: Path, device: DisguisedDevice) -> None:
    """With q, k and v, and gate and up as one. Rows of the embedding are one launch more."""
    model = packed(folder, linear_mode="fused")
    expected = step(packed(folder), device)
    found = step(model, device)
    torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=0.05, atol=0.05)
    ours = {name: count for name, count in device.calls.items() if name.startswith("tensorwire: ")}
    assert ours == {"tensorwire: product": 4 * LAYERS + 1, "tensorwire: rows": 1}
    dense = step(load(folder / "dense", "llama", device_map=DEVICE.type), device)
    torch.testing.assert_close(found.cpu(), dense.cpu(), rtol=0.05, atol=0.05)
    kernels = sum(device.calls[f"aten::{name}"] for name in ("linear", "mm", "addmm"))
    assert kernels >= 7 * LAYERS + 1
    assert sum(ours.values()) <= 1.2 * (7 * LAYERS + 1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are compiled with g++ here")
def test_a_step_by_our_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch a product, as above; here they run, on the CPU."""
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    results = []
    for driver in (None, StandIn()):
        with DisguisedDevice(driver) as device, torch.no_grad():
            model = packed(folder, linear_mode="fused")
            results.append(step(model, device).cpu())
            if driver is not None:
                driver.launches.clear()
                model(tokens()[:, :1])
                counts = Counter(each.kernel.header for each in driver.launches)
                assert counts == {"thin.cuh": 4 * LAYERS + 1, "rows.cuh": 1}
    torch.testing.assert_close(*results, rtol=0.05, atol=0.05)


def test_all_other_operations_are_those_of_the_dense_model(folder: Path, device: DisguisedDevice) -> None:
    """A compressed weight asks the device for nothing but its products, and memory for them."""
    step(load(folder / "dense", "llama", device_map=DEVICE.type), device)
    expected = sum(device.calls.values())
    step(packed(folder, linear_mode="fused"), device)
    assert sum(device.calls.values()) <= 1.2 * expected


def test_a_long_prompt_is_decoded_ahead(folder: Path, device: DisguisedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    side = SideStream(OneByOne())
    monkeypatch.setattr(ops, "side_stream_of", lambda device: side)
    dense, model = load(folder / "dense", "llama", device_map=DEVICE.type), packed(folder)
    prompt = torch.arange(300).view(5, 60).to(DEVICE)
    for _ in range(2):
        device.calls.clear()
        assert torch.equal(model(prompt).logits.cpu(), dense(prompt).logits.cpu())
    assert device.calls["tensorwire: decode"] == 7 * LAYERS + 1 + 1  # the first one of the next pass
    assert side._at_work  # some of them beside a product


class OneByOne:
    """Streams that do at once what they are told."""

    side = "side"

    def current(self) -> str:
        return "own"

    def on(self, stream: str) -> AbstractContextManager[None]:
        return nullcontext()

    def event(self) -> Any:
        return SimpleNamespace(record=lambda stream: None, wait=lambda stream: None, query=lambda: False)

    def keep(self, memory: torch.Tensor, stream: str) -> None:
        pass


def test_a_wait_is_refused_here(device: DisguisedDevice) -> None:
    x = torch.ones(3, device=DEVICE)
    waits = (
        lambda: x.sum().item(),
        lambda: x.nonzero(),
        lambda: x.unique(),
        lambda: x.cpu(),
        lambda: x[x > 0],
        lambda: torch.zeros(3).copy_(x),
        lambda: torch.ones(3).to(DEVICE),
    )
    for wait in waits:
        with device.no_waits(), pytest.raises(RuntimeError, match="makes the host wait"):
            wait()
        wait()


def test_loading_opens_all_frames_and_moves_nothing_else(folder: Path, device: DisguisedDevice) -> None:
    model = packed(folder)
    weights = [parameter for parameter in model.parameters() if isinstance(parameter, CompressedTensor)]
    assert all(weight.device == DEVICE for weight in weights)
    assert device.calls["tensorwire: open"] == len(weights) == 7 * LAYERS + 2
    assert not device.calls["tensorwire: decode"]
    moved = device.moved_nbytes
    assert moved < sum(weight.frame.numel() for weight in weights) + 100_000
    device.calls.clear()
    assert prepare(model).frames == len(weights)
    assert not device.launches


def test_an_uncompressed_checkpoint_is_compressed_while_it_loads(folder: Path, device: DisguisedDevice) -> None:
    config = TensorwireConfig("resident", linear_mode="fused", **CHOSEN)
    model = load(folder / "dense", "llama", quantization_config=config, device_map=DEVICE.type)
    weights = [parameter for parameter in model.parameters() if isinstance(parameter, CompressedTensor)]
    assert device.calls["tensorwire: open"] == len(weights) == 7 * LAYERS + 2
    found, expected = step(model, device), step(packed(folder, linear_mode="fused"), device)
    assert torch.equal(found.cpu(), expected.cpu())


@pytest.mark.parametrize("mode", [pytest.param("exact", marks=pytest.mark.slow), "fused"])
def test_generate_captures_its_steps(mode: str, folder: Path, device: DisguisedDevice) -> None:
    """In mode fused without a line of the user's; in mode exact if it is asked to."""
    model = packed(folder, linear_mode=mode)
    assert model.generation_config.cache_implementation == (None if mode == "exact" else "static")
    assert model.generation_config.compile_config == (None if mode == "exact" else CompileConfig(backend=inductor))
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static"}
    found = model.generate(tokens(), **options)
    set_linear_mode(model, "exact")
    expected = model.generate(tokens(), **options)
    assert torch.equal(found.cpu(), expected.cpu())


def test_what_a_checkpoint_says_of_the_cache_is_kept(folder: Path, device: DisguisedDevice, tmp_path: Path) -> None:
    tensorwire.compress_checkpoint(folder / "dense", tmp_path / "packed", profile="resident")
    settings = transformers.GenerationConfig(cache_implementation="dynamic")
    settings.save_pretrained(tmp_path / "packed")
    model = packed(tmp_path, linear_mode="fused")
    assert model.generation_config.cache_implementation == "dynamic"


def test_a_model_that_is_no_single_graph_keeps_its_cache(
    folder: Path, device: DisguisedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.LlamaForCausalLM, "_can_compile_fullgraph", False)
    assert packed(folder, linear_mode="fused").generation_config.cache_implementation is None


def test_on_the_cpu_nothing_is_set(folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(folder / "packed")
    config.quantization_config["linear_mode"] = "fused"
    model = load(folder / "packed", "llama", config=config)
    assert model.generation_config.cache_implementation is None


def test_generate_makes_one_graph_of_a_step(folder: Path) -> None:
    """As it does by itself on a GPU; here, on the CPU, it is asked to."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    def backend(graph: Any, inputs: Any, **options: Any) -> Any:
        return aot_autograd(fw_compiler=keep)(graph, inputs)

    compiled = transformers.CompileConfig(backend=backend, fullgraph=True)
    compiled._compile_all_devices = True
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static"}
    found = []
    for name in ("packed", "dense"):
        torch._dynamo.reset()
        model = load(folder / name, "llama", num_hidden_layers=1)
        found.append(model.generate(torch.tensor(TOKENS), compile_config=compiled, **options))
    assert torch.equal(*found)
    ours, theirs = ({str(node.target) for node in graph.graph.nodes} for graph in graphs)
    assert {name for name in ours - theirs if "." in name} == {"tensorwire.linear.default", "tensorwire.table.default"}
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["linear", "rows", "decode"])
def test_operators_may_be_captured(name: str) -> None:
    """Inductor leaves graphs with operators that write to their arguments, or say that they may not be, uncaptured."""
    operator = getattr(torch.ops.tensorwire, name).default
    assert not operator._schema.is_mutable
    assert getattr(torch.Tag, "cudagraph_unsafe", None) not in operator.tags
