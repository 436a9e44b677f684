"""A training loop over a compressed model says that it trains what is not compressed alone; adapters say nothing."""

from __future__ import annotations

import copy
import functools
import warnings
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tensorwire  # noqa: E402
from tensorwire.torch import CompressedTensor, compress_module  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WARNING = r"does not train the 2 of its 6 parameters that are compressed.*requires_grad_\(False\).*requires_grad_\(\)"
WIDTH = 256


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))


def compressed() -> nn.Module:
    return compress_module(model(), min_numel=1000)


def loaded(path: Path) -> nn.Module:
    tensorwire.save_file(model().state_dict(), path)
    with torch.device("meta"):
        empty = model()
    empty.load_state_dict(tensorwire.load_file(path, framework="pt", compressed=True), assign=True)
    return empty


def train(module: nn.Module, optimizer: Any, steps: int = 2) -> None:
    """As the tutorials have it."""
    module.train()
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(4, WIDTH)).square().sum().backward()
        optimizer.step()


MADE: dict[str, Callable[[Path], nn.Module]] = {
    "compressed in memory": lambda path: compressed(),
    "loaded": loaded,
    "moved": lambda path: compressed()._apply(torch.clone),  # as from one device to another
    "converted": lambda path: compressed().half().float(),
    "copied": lambda path: copy.deepcopy(compressed()),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_training_loop_is_told_once(made: Callable[[Path], nn.Module], optimizer: Any, tmp_path: Path) -> None:
    module = made(tmp_path / "model.safetensors")
    assert sum(isinstance(parameter, CompressedTensor) for parameter in module.parameters()) == 2
    with pytest.warns(UserWarning, match=WARNING) as caught:
        train(module, optimizer(module.parameters(), lr=1e-3))
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("asked", ["before the optimizer is made", "after a step"])
def test_what_the_warning_says_helps(asked: str) -> None:
    module = compressed()
    if asked.startswith("before"):
        module.requires_grad_()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    if asked.startswith("after"):
        with pytest.warns(UserWarning, match=WARNING):
            train(module, optimizer, steps=1)
        module.requires_grad_()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    train(module, optimizer)
    assert not any(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))


class Adapted(nn.Module):
    """A frozen layer and an adapter, made by hand."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.low, self.high = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.layer(x) + self.high(self.low(x))


def by_hand(base: nn.Module) -> nn.Module:
    return nn.Sequential(*(Adapted(layer) if isinstance(layer, nn.Linear) else layer for layer in base))


def by_peft(base: nn.Module, **options: Any) -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(base, peft.LoraConfig(target_modules=["0", "2"], **options))  # type: ignore[no-any-return]


ADAPTED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "by hand": by_hand,
    # All of it is compressed: no dense parameter tells that it is frozen.
    "by hand, no bias": lambda _: Adapted(compress_module(nn.Linear(WIDTH, WIDTH, bias=False), min_numel=1000)),
    "by PEFT": functools.partial(by_peft, init_lora_weights=False),
    "by PEFT with biases": functools.partial(by_peft, bias="all"),
    "a new head": lambda base: nn.Sequential(base.requires_grad_(False), nn.Linear(WIDTH, 2)),
}


@pytest.mark.parametrize("which", ["all parameters", "those that require a gradient"])
@pytest.mark.parametrize("made", ADAPTED.values(), ids=ADAPTED)
def test_adapters_on_a_compressed_model_are_meant(made: Callable[[nn.Module], nn.Module], which: str) -> None:
    module = made(compressed())
    assert any(isinstance(parameter, CompressedTensor) for parameter in module.parameters())
    parameters = [p for p in module.parameters() if which == "all parameters" or p.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(module, torch.optim.AdamW(parameters))


def test_a_layer_that_peft_is_to_save_trains() -> None:
    """Its copy of a compressed layer is dense."""
    peft = pytest.importorskip("peft")
    module = peft.get_peft_model(compressed(), peft.LoraConfig(target_modules=["0"], modules_to_save=["2"]))
    layer = module.base_model.model[2]
    weight = layer.modules_to_save["default"].weight
    before = weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(module, torch.optim.SGD(module.parameters(), lr=1e-3))
    assert not torch.equal(weight, before)
    assert torch.equal(layer.original_module.weight.decode(), before)


def test_who_chooses_parameters_is_not_told() -> None:
    """They are those that require a gradient, and compressed ones do not."""
    module = compressed()
    chosen = [parameter for parameter in module.parameters() if parameter.requires_grad]
    assert len(chosen) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(module, torch.optim.SGD(chosen))


def test_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tests.support.transformer_models import load, save

        save("llama", tmp_path / "llama")
        tensorwire.compress_checkpoint(tmp_path / "llama", tmp_path / "compressed")
        language_model = load(tmp_path / "compressed", "llama")
    tokens = torch.ones((1, 4), dtype=torch.long)
    optimizer = torch.optim.SGD(language_model.parameters())
    language_model(input_ids=tokens, labels=tokens).loss.backward()
    with pytest.warns(UserWarning, match="parameters that are compressed"):
        optimizer.step()
