"""What `save_pretrained` writes of weights that were tied in the checkpoint: what the dense model writes, whether they
are still one or not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import tensorwire

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tensorwire.torch import CompressedTensor, compress_module, decompress_module  # noqa: E402
from tensorwire.torch.integrations.transformers import TensorwireConfig  # noqa: E402
from tests.support.transformer_models import bits, load, save  # noqa: E402
from tests.support.versions import torch_since  # noqa: E402

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


def own_head_and_configuration(model: Any) -> None:
    model.config.tie_word_embeddings = False
    own_head(model)


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


def cloned_and_changed(model: Any) -> None:
    cloned(model)
    with torch.no_grad():
        head(model).weight.mul_(2)


def cloned_and_resized(model: Any) -> None:
    model.config.tie_word_embeddings = False
    cloned(model)
    torch.manual_seed(0)
    model.resize_token_embeddings(520, mean_resizing=False)


def own_head_then_dense(model: Any) -> None:
    own_head(model)
    decompress_module(model)


def dense_then_own_head(model: Any) -> None:
    decompress_module(model)
    own_head(model)


def own_head_then_dequantized(model: Any) -> None:
    own_head(model)
    dequantized(model)


def own_head_that_is_compressed(model: Any) -> None:
    own_head(model)
    if any(isinstance(parameter, CompressedTensor) for parameter in model.parameters()):
        compress_module(model)


def as_loaded(model: Any) -> None:
    pass


def tied_again(model: Any) -> None:
    cloned(model)
    model.tie_weights()


def changed(model: Any) -> None:
    with torch.no_grad():
        head(model).weight.mul_(2)


def resized(model: Any) -> None:
    torch.manual_seed(0)
    model.resize_token_embeddings(520, mean_resizing=False)


def copied(model: Any) -> Any:
    return copy.deepcopy(model)


def loaded_again(model: Any) -> None:
    model.load_state_dict(model.state_dict(), assign=True)


def another_parameter_of_one_memory(model: Any) -> None:
    head(model).weight = torch.nn.Parameter(head(model).weight.detach(), requires_grad=False)


def another_parameter_then_dense(model: Any) -> None:
    another_parameter_of_one_memory(model)
    decompress_module(model)


def dense(model: Any) -> None:
    decompress_module(model)


def dequantized(model: Any) -> None:
    if hasattr(model, "hf_quantizer"):
        model.dequantize()


APART = [
    own_head, own_head_and_configuration, another_layer, own_embedding, cloned, cloned_and_changed,
    cloned_and_resized, own_head_then_dense, dense_then_own_head, own_head_then_dequantized,
    own_head_that_is_compressed,
]  # fmt: skip
TIED = [
    as_loaded, tied_again, changed, resized, copied, loaded_again, another_parameter_of_one_memory,
    another_parameter_then_dense, dense, dequantized,
]  # fmt: skip


@torch.no_grad()
def computed(model: Any) -> tuple[Any, ...]:
    """What it makes of a few tokens: each row of the embedding and of the head counts that they take."""
    tokens = torch.randint(1, 512, (1, 4), generator=torch.Generator().manual_seed(1))
    more = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    return bits(model(input_ids=tokens, **more)[0])


def names_saved(model: Any, path: Path) -> set[str]:
    model.save_pretrained(path)
    return set(tensorwire.load_file(path, framework="pt"))


def saved(model: Any, change: Any, path: Path, name: str) -> tuple[set[str], Any, Any]:
    """The names that are saved, and what the model computes before and after."""
    model = change(model) or model
    before = computed(model)
    names = names_saved(model, path)
    return names, before, computed(load(path, name))


QUICK = {
    "llama-tied": {
        own_head, own_embedding, another_layer, cloned_and_changed, cloned_and_resized, own_head_then_dense, tied_again,
        copied, another_parameter_of_one_memory, another_parameter_then_dense, dequantized,
    },
    "gpt2": {own_head_and_configuration, cloned, own_head_that_is_compressed, changed, loaded_again, dense},
    "t5": {as_loaded, resized},
}  # fmt: skip
"""Changes of each model that are quick tests; most in the model that is loaded soonest."""


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(
            name, change, marks=() if change in QUICK[name] else pytest.mark.slow, id=f"{name}-{change.__name__}"
        )
        for name in NAMES
        for change in (*APART, *TIED)
    ],
)
def test_what_the_dense_model_saves(folder: Path, tmp_path: Path, name: str, change: Any) -> None:
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
    for change in (as_loaded, own_head):
        model = load(folder / f"{name}.tensorwire", name)
        change(model)
        counts.append(len(names_saved(model, tmp_path / change.__name__)))
    assert counts[0] == counts[1] - 1
