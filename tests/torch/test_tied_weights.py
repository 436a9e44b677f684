"""What `save_pretrained` writes of weights that were tied in the checkpoint: what the dense model writes, whether they
are still one or not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tensorwire

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tensorwire.torch import CompressedTensor, compress_module, decompress_module  # noqa: E402
from tensorwire.torch.integrations.transformers import TensorwireConfig  # noqa: E402
from tests.support.transformer_models import bits, load, save  # noqa: E402
from tests.support.versions import torch_since  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.filterwarnings("ignore"), torch_since(2, 8)]

NAMES = ["llama-tied", "gpt2", "t5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        save(name, root / name)
        tensorwire.compress_checkpoint(root / name, root / f"{name}.tensorwire")
    return root


def head(model: Any) -> Any:
    return model.get_output_embeddings()


def own_weight(layer: Any) -> None:
    """As if it had been trained."""
    values = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(1))
    layer.weight = torch.nn.Parameter(values.mul(0.02).bfloat16())


def own_head(model: Any) -> None:
    own_weight(head(model))


def untied(model: Any) -> None:
    model.config.tie_word_embeddings = False


def compressed_again(model: Any) -> None:
    if any(isinstance(parameter, CompressedTensor) for parameter in model.parameters()):
        compress_module(model)


def another_layer(model: Any) -> None:
    rows, columns = head(model).weight.shape
    layer = torch.nn.Linear(columns, rows, bias=False)
    own_weight(layer)
    model.set_output_embeddings(layer)


def own_embedding(model: Any) -> None:
    rows, columns = head(model).weight.shape
    layer = torch.nn.Embedding(rows, columns)
    own_weight(layer)
    model.set_input_embeddings(layer)


def cloned(model: Any) -> None:
    head(model).weight = torch.nn.Parameter(head(model).weight.detach().clone(), requires_grad=False)


def changed(model: Any) -> None:
    with torch.no_grad():
        head(model).weight.mul_(2)


def resized(model: Any) -> None:
    torch.manual_seed(0)
    model.resize_token_embeddings(520, mean_resizing=False)


def loaded_again(model: Any) -> None:
    model.load_state_dict(model.state_dict(), assign=True)


def another_parameter_of_one_memory(model: Any) -> None:
    head(model).weight = torch.nn.Parameter(head(model).weight.detach(), requires_grad=False)


def dequantized(model: Any) -> None:
    if hasattr(model, "hf_quantizer"):
        model.dequantize()


CHANGES: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "own head": (own_head,),
    "own head and configuration": (untied, own_head),
    "another layer": (another_layer,),
    "own embedding": (own_embedding,),
    "cloned": (cloned,),
    "cloned and changed": (cloned, changed),
    "cloned and resized": (untied, cloned, resized),
    "own head, then dense": (own_head, decompress_module),
    "dense, then own head": (decompress_module, own_head),
    "own head, then dequantized": (own_head, dequantized),
    "own head that is compressed": (own_head, compressed_again),
    "as loaded": (),
    "tied again": (cloned, lambda model: model.tie_weights()),
    "changed": (changed,),
    "resized": (resized,),
    "copied": (copy.deepcopy,),
    "loaded again": (loaded_again,),
    "another parameter of one memory": (another_parameter_of_one_memory,),
    "another parameter, then dense": (another_parameter_of_one_memory, decompress_module),
    "dense": (decompress_module,),
    "dequantized": (dequantized,),
}
"""One after the other; those that give a model go on with it."""


@torch.no_grad()
def computed(model: Any) -> tuple[Any, ...]:
    """What it makes of a few tokens: each row of the embedding and of the head counts that they take."""
    tokens = torch.randint(1, 512, (1, 4), generator=torch.Generator().manual_seed(1))
    more = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    return bits(model(input_ids=tokens, **more)[0])


def saved(model: Any, change: str, path: Path, name: str) -> tuple[set[str], Any, Any]:
    """The names that are saved, and what the model computes before and after."""
    for step in CHANGES[change]:
        model = step(model) or model
    before = computed(model)
    model.save_pretrained(path)
    return set(tensorwire.load_file(path, framework="pt")), before, computed(load(path, name))


QUICK = {
    "llama-tied": {
        "own head", "own embedding", "another layer", "cloned and changed", "cloned and resized",
        "own head, then dense", "tied again", "copied", "another parameter of one memory",
        "another parameter, then dense", "dequantized",
    },
    "gpt2": {
        "own head and configuration", "cloned", "own head that is compressed", "changed", "loaded again", "dense",
    },
    "t5": {"as loaded", "resized"},
}  # fmt: skip
"""Changes of each model that are quick tests; most in the model that is loaded soonest."""


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(name, change, marks=() if change in QUICK[name] else pytest.mark.slow)
        for name in NAMES
        for change in CHANGES
    ],
)
def test_what_the_dense_model_saves(folder: Path, tmp_path: Path, name: str, change: str) -> None:
    expected, wanted, again = saved(load(folder / name, name), change, tmp_path / "dense", name)
    assert wanted == again
    models = {
        "compressed": load(folder / f"{name}.tensorwire", name),
        "while loading": load(folder / name, name, quantization_config=TensorwireConfig()),
    }
    for kind, model in models.items():
        names, before, after = saved(model, change, tmp_path / kind, name)
        assert (names, before, after) == (expected, wanted, wanted), kind


@pytest.mark.parametrize("name", NAMES)
def test_a_tied_weight_is_saved_once(folder: Path, tmp_path: Path, name: str) -> None:
    counts = []
    for change in ("as loaded", "own head"):
        model = load(folder / f"{name}.tensorwire", name)
        counts.append(len(saved(model, change, tmp_path / change, name)[0]))
    assert counts[0] == counts[1] - 1
