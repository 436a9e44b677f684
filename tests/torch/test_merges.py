"""Calls of other libraries that write to weights, or ask for their memory: they do to compressed weights what they do
to dense ones, or say what to call first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import safetensors.torch as safetensors_torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import linear  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import tensorwire  # noqa: E402
from tensorwire.torch import CompressedTensor, compress_module, memory_report  # noqa: E402
from tests.support.linear_models import chain, same  # noqa: E402
from tests.support.transformer_models import load, num_compressed, outputs, save, state  # noqa: E402
from tests.support.versions import torch_since  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own and torch's future


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models")
    for name in ("llama", "llama-tied"):
        save(name, path / name)
        tensorwire.compress_checkpoint(path / name, path / f"{name}.compressed")
    return path


def both(folder: Path, change: Callable[[Any], Any], name: str = "llama") -> tuple[Any, Any]:
    """The dense model and the compressed one, changed in the same way."""
    models = []
    for path in (folder / name, folder / f"{name}.compressed"):
        model = load(path, name)
        torch.manual_seed(0)
        models.append(change(model))
    return models[0], models[1]


def assert_same(dense: Any, compressed: Any) -> None:
    assert state(compressed) == state(dense)
    for ours, theirs in zip(outputs(compressed), outputs(dense), strict=True):
        assert same(ours, theirs)


# PEFT -----------------------------------------------------------------------------------------------------------------


def adapted(model: Any, **options: Any) -> Any:
    peft = pytest.importorskip("peft")
    targets = ["q_proj", "down_proj", "embed_tokens"]
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, init_lora_weights=False, **options))


@pytest.mark.parametrize(
    ("options", "safe"),
    [
        pytest.param({}, False, id="lora"),
        pytest.param({"use_dora": True}, True, id="dora-safe_merge"),
        pytest.param({}, True, id="lora-safe_merge", marks=pytest.mark.slow),
        pytest.param({"use_dora": True}, False, id="dora", marks=pytest.mark.slow),
    ],
)
def test_merge_and_unload(folder: Path, options: dict[str, Any], safe: bool) -> None:
    dense, compressed = both(folder, lambda model: adapted(model, **options).merge_and_unload(safe_merge=safe))
    assert_same(dense, compressed)
    assert num_compressed(compressed) == num_compressed(load(folder / "llama.compressed", "llama")), "none is dense now"
    assert state(dense) != state(load(folder / "llama", "llama"))


def test_merge_and_unmerge(folder: Path) -> None:
    models = both(folder, adapted)
    for model in models:
        model.merge_adapter()
    assert_same(*models)
    for model in models:
        model.unmerge_adapter()
    assert_same(*models)


@torch_since(2, 8)
def test_a_merged_model_is_saved(folder: Path, tmp_path: Path) -> None:
    dense, compressed = both(folder, lambda model: adapted(model).merge_and_unload())
    compressed.save_pretrained(tmp_path / "merged")
    assert_same(dense, load(tmp_path / "merged", "llama"))


def test_prepare_model_for_kbit_training(folder: Path) -> None:
    """It casts to float32 whatever is BF16."""
    peft = pytest.importorskip("peft")
    dense, compressed = both(
        folder, lambda model: peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    )
    assert {parameter.dtype for parameter in compressed.parameters()} == {torch.float32}
    assert not any(parameter.requires_grad for parameter in compressed.parameters())
    assert num_compressed(compressed) == num_compressed(load(folder / "llama.compressed", "llama"))
    assert_same(dense, compressed)


# Transformers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mean_resizing", "num_tokens"),
    [
        ("llama", True, 600), ("llama", False, 300), ("llama-tied", False, 600), ("llama-tied", True, 300),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("llama", True, 300), ("llama", False, 600), ("llama-tied", False, 300))
        ),
        pytest.param("llama-tied", True, 600, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_resize_token_embeddings(folder: Path, name: str, num_tokens: int, mean_resizing: bool) -> None:
    def resized(model: Any) -> Any:
        model.resize_token_embeddings(num_tokens, mean_resizing=mean_resizing)
        return model

    dense, compressed = both(folder, resized, name)
    assert compressed.get_input_embeddings().weight.shape == (num_tokens, 256)
    tied = compressed.get_output_embeddings().weight is compressed.get_input_embeddings().weight
    assert tied == (name == "llama-tied")
    assert state(compressed) == state(dense)
    tokens = torch.arange(num_tokens - 20, num_tokens)[None]
    with torch.no_grad():
        assert same(compressed(input_ids=tokens).logits, dense(input_ids=tokens).logits)


def test_memory_footprint_is_that_of_the_dense_model(folder: Path) -> None:
    """As the page has it: `memory_report` has the bytes."""
    dense, compressed = both(folder, lambda model: model)
    assert compressed.get_memory_footprint() == dense.get_memory_footprint()
    assert memory_report(compressed).nbytes < dense.get_memory_footprint() / 1.3


# PyTorch and safetensors ----------------------------------------------------------------------------------------------


def test_pruning(folder: Path) -> None:
    found = []
    for model in (chain(num_layers=2), compress_module(chain(num_layers=2))):
        layer = model[1]
        prune.l1_unstructured(layer, "weight", amount=0.3)
        x = torch.ones(1, layer.in_features).bfloat16()
        pruned = model(x)
        prune.remove(layer, "weight")
        assert same(model(x), pruned)
        found.append((pruned, layer.weight))
    assert isinstance(found[1][1], CompressedTensor)
    assert same(found[1][1].decode(), found[0][1])
    assert same(found[1][0], found[0][0])
    assert (found[0][1] == 0).float().mean() > 0.29


def test_safetensors_says_what_to_give_it_instead_of_parameters(tmp_path: Path) -> None:
    """Else a model would become dense. The tensors of a state dict do: tests of adapters save some."""
    model = compress_module(chain(num_layers=1))
    for write in (
        lambda: safetensors_torch.save_file(dict(model.named_parameters()), tmp_path / "a"),
        lambda: safetensors_torch.save(dict(model.named_parameters())),
    ):
        with pytest.raises(RuntimeError, match=r"got a compressed parameter.*state_dict\(\) or tensor\.decode\(\)"):
            write()
    assert not list(tmp_path.iterdir())


class Router(nn.Module):
    """It multiplies in float32, as those of experts do."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Any) -> Any:
        return linear(x.float(), self.weight.float()), self.weight.to(torch.float64).sum(), self.weight.type(x.dtype)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@torch.no_grad()
def test_a_conversion_in_a_forward_compresses_nothing(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = chain(num_layers=1)[0].weight
    dense, router = Router(weight), Router(CompressedTensor.from_dense(weight))
    x = torch.ones(2, weight.shape[1]).half()
    expected = dense(x)
    monkeypatch.setattr(CompressedTensor, "from_dense", None)  # nothing is compressed anew
    found = (torch.compile(router, fullgraph=True, backend="aot_eager") if compiled else router)(x)
    for ours, theirs in zip(found, expected, strict=True):
        assert same(ours.decode() if isinstance(ours, CompressedTensor) else ours, theirs)


def test_a_model_that_is_converted_stays_compressed() -> None:
    for convert in (nn.Module.half, nn.Module.float, lambda module: module.to("cpu", torch.float16)):
        dense, compressed = convert(chain(num_layers=1)), convert(compress_module(chain(num_layers=1)))
        assert isinstance(compressed[0].weight, CompressedTensor)
        assert isinstance(compressed[0].weight, nn.Parameter)
        assert same(compressed[0].weight.decode(), dense[0].weight)
        assert memory_report(compressed).ratio > 1.1
    assert compress_module(chain(num_layers=1)).to_empty(device="meta")[0].weight.is_meta
    assert compress_module(chain(num_layers=1)).to("meta", torch.float16)[0].weight.dtype == torch.float16
