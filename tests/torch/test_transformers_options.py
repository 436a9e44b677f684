"""What is asked for in `from_pretrained` counts for a compressed checkpoint as it does for a dense one."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import tensorwire

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.core_model_loading import ConversionOps  # noqa: E402
from transformers.quantizers import auto  # noqa: E402
from transformers.quantizers.base import HfQuantizer  # noqa: E402
from transformers.utils.quantization_config import QuantizationConfigMixin  # noqa: E402

from tensorwire.torch import CompressedTensor, compress_module, decompress_module  # noqa: E402
from tensorwire.torch.integrations.transformers import TensorwireConfig, TensorwireQuantizer  # noqa: E402
from tests.support.transformer_models import bits, load, num_compressed, outputs, save, state  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own and torch's future


@pytest.fixture(scope="module")
def _models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def name() -> str:
    """The model of tests that say no other."""
    return "llama"


@pytest.fixture
def folder(_models: Path, name: str) -> Path:
    """Where the model is, and compressed beside it."""
    if not (_models / name).exists():
        save(name, _models / name)
        tensorwire.compress_checkpoint(_models / name, _models / f"{name}.tensorwire")
    return _models


# Options --------------------------------------------------------------------------------------------------------------


def test_options_count_where_config_json_has_others(folder: Path) -> None:
    path = folder / "llama.tensorwire"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load(path, "llama", quantization_config=TensorwireConfig(linear_mode="fused", min_numel=131_072))
    assert {p.numel() for p in model.parameters() if isinstance(p, CompressedTensor)} == {131_072}
    assert {p.linear_mode for p in model.parameters() if isinstance(p, CompressedTensor)} == {"fused"}
    assert model.config.quantization_config.linear_mode == "fused"
    dense = load(path, "llama", quantization_config=TensorwireConfig(dequantize=True))
    assert num_compressed(dense) == 0
    assert all(parameter.requires_grad for parameter in dense.parameters())
    assert not hasattr(dense.config, "quantization_config")
    assert state(dense) == state(load(folder / "llama", "llama"))


def test_options_that_are_not_given_are_those_of_config_json(folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(folder / "llama.tensorwire")
    config.quantization_config |= {"linear_mode": "fused", "min_numel": 131_072}
    for given, expected in ((TensorwireConfig(), "fused"), (TensorwireConfig(linear_mode="exact"), "exact")):
        model = load(folder / "llama.tensorwire", "llama", config=config, quantization_config=copy.deepcopy(given))
        assert model.lm_head.weight.linear_mode == expected
        assert model.config.quantization_config.min_numel == 131_072


def test_what_a_configuration_prints_and_saves() -> None:
    config = TensorwireConfig("resident", verify=False, then=transformers.FineGrainedFP8Config())
    assert "resident" in repr(config)
    assert not config.to_dict().keys() & {"verify", "then", "_given"}
    for wrong in ({"quant_method": "fp8"}, TensorwireConfig()):
        with pytest.raises(ValueError, match="configuration of another method for then, got"):
            TensorwireConfig(then=wrong)


# Another method of quantization ---------------------------------------------------------------------------------------


class FakeConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """Stands for the configuration of a method that quantizes while a model is loaded, as bitsandbytes does."""

    def __init__(self, quant_method: str = "fake") -> None:
        self.quant_method = quant_method


class FakeRounding(ConversionOps):  # type: ignore[misc]
    def convert(self, input_dict: dict[str, Any], **_: Any) -> dict[str, Any]:
        (found,) = input_dict.items()
        name, held = found
        tensor = held[0] if isinstance(held, list) else held
        assert type(tensor) is torch.Tensor
        return {name: torch.nn.Parameter((tensor.float() * 64).round().to(torch.int8), requires_grad=False)}


class FakeQuantizer(HfQuantizer):  # type: ignore[misc]
    is_trainable = False
    after: tuple[Any, ...] = ()

    def is_serializable(self) -> bool:
        return False

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        module = model.get_submodule(param_name.rpartition(".")[0])
        return type(module).__name__ in ("Linear", "Conv1D") and param_name.endswith("weight")

    def get_quantize_ops(self) -> Any:
        return FakeRounding()

    def _process_model_before_weight_loading(self, model: Any, device_map: Any = None, **options: Any) -> None:
        assert set(options) >= {"checkpoint_files"}

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        self.after += (type(self),)
        return model


@pytest.fixture
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(auto.AUTO_QUANTIZATION_CONFIG_MAPPING, "fake", FakeConfig)
    monkeypatch.setitem(auto.AUTO_QUANTIZER_MAPPING, "fake", FakeQuantizer)


def quantized(path: Path, name: str, method: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    model = load(path, name, quantization_config=method, **options)
    return model, {key: bits(tensor) for key, tensor in model.state_dict().items()}


@pytest.mark.usefixtures("_fake")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("moe", {}),
        ("t5", {"dtype": torch.float16}),
        pytest.param("llama", {}, marks=pytest.mark.slow),
        pytest.param("gpt2", {}, marks=pytest.mark.slow),
        pytest.param("t5", {}, marks=pytest.mark.slow),
        pytest.param("llama", {"dtype": torch.float32}, marks=pytest.mark.slow),
    ],
)
def test_another_method_quantizes_what_the_dense_checkpoint_has(
    folder: Path, name: str, options: dict[str, Any]
) -> None:
    """With a fake method; bitsandbytes, quanto and torchao are no packages of the tests."""
    _, expected = quantized(folder / name, name, FakeConfig(), **options)
    assert torch.int8 in {dtype for dtype, *_ in expected.values()}
    for path in (folder / f"{name}.tensorwire", folder / name):
        model, found = quantized(path, name, TensorwireConfig(then=FakeConfig()), **options)
        assert found == expected
        assert type(model.config.quantization_config) is FakeConfig
        assert model.hf_quantizer.after == (FakeQuantizer,), "it is what it was"
        assert type(pickle.loads(pickle.dumps(copy.deepcopy(model.hf_quantizer)))) is FakeQuantizer


@pytest.mark.usefixtures("_fake")
def test_what_another_method_cannot_have_is_refused(folder: Path, tmp_path: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(folder / "llama.tensorwire")
    config.quantization_config["wrapped"] = {"quant_method": "fp8"}
    with pytest.raises(ValueError, match=r"quantized \(fp8\) and compressed on top"):
        quantized(folder / "llama.tensorwire", "llama", TensorwireConfig(then=FakeConfig()), config=config)
    pytest.importorskip("accelerate")
    with pytest.raises(ValueError, match="offloaded to disk"):
        quantized(
            folder / "llama.tensorwire", "llama", TensorwireConfig(then=FakeConfig()),
            device_map={"model": "cpu", "lm_head": "disk"}, offload_folder=tmp_path,
        )  # fmt: skip
    config.quantization_config = {**config.quantization_config, "wrapped": None, "then": {"quant_method": "fake"}}
    with pytest.raises(ValueError, match="configuration of another method for then, got dict"):
        load(folder / "llama.tensorwire", "llama", config=config)


# Inference mode -------------------------------------------------------------------------------------------------------


def dequantizing(folder: Path) -> Any:
    return load(folder / "llama.tensorwire", "llama", quantization_config=TensorwireConfig(dequantize=True))


LOADED: dict[str, Callable[[Path], Any]] = {
    "compressed": lambda folder: load(folder / "llama.tensorwire", "llama"),
    "compressed, in another dtype": lambda folder: load(folder / "llama.tensorwire", "llama", dtype=torch.float32),
    "compressed while loading": lambda folder: load(
        folder / "llama", "llama", quantization_config=TensorwireConfig(profile="resident")
    ),
    "decompressed while loading": dequantizing,
    "dequantized later": lambda folder: load(folder / "llama.tensorwire", "llama").dequantize(),
    "made dense": lambda folder: decompress_module(load(folder / "llama.tensorwire", "llama")),
    "compressed later": lambda folder: compress_module(dequantizing(folder)),
}


@pytest.mark.parametrize("loaded", LOADED.values(), ids=LOADED)
def test_what_is_loaded_in_inference_mode_trains_afterwards(folder: Path, loaded: Callable[[Path], Any]) -> None:
    """As a dense model does, which Transformers reads in threads of its own."""
    with torch.inference_mode():
        model = loaded(folder)
    assert [name for name, parameter in model.named_parameters() if parameter.is_inference()] == []
    tokens = torch.arange(5)[None]
    model.requires_grad_(False)
    model.model.norm.weight.requires_grad_()
    model(tokens, labels=tokens).loss.backward()
    assert model.model.norm.weight.grad is not None


# The device meta ------------------------------------------------------------------------------------------------------

COUNTED: dict[str, Callable[[Path, str, Any], Any]] = {
    "compressed": lambda folder, name, where: load(folder / f"{name}.tensorwire", name, device_map=where),
    "compressed while loading": lambda folder, name, where: load(
        folder / name, name, device_map=where, quantization_config=TensorwireConfig()
    ),
    "decompressed while loading": lambda folder, name, where: load(
        folder / f"{name}.tensorwire", name, device_map=where, quantization_config=TensorwireConfig(dequantize=True)
    ),
}


@pytest.mark.parametrize(
    "where", ["meta", {"": "meta"}, pytest.param({"": torch.device("meta")}, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("counted", COUNTED.values(), ids=COUNTED)
@pytest.mark.parametrize("name", ["llama", pytest.param("moe", marks=pytest.mark.slow)])
def test_a_model_on_the_device_meta_is_counted(
    folder: Path, name: str, counted: Callable[[Path, str, Any], Any], where: Any
) -> None:
    pytest.importorskip("accelerate")
    found = counted(folder, name, where)
    facts = [
        {key: (p.shape, p.dtype, p.device.type) for key, p in model.named_parameters()}
        for model in (found, load(folder / name, name, device_map=where))
    ]
    assert facts[0] == facts[1]
    assert {device for *_, device in facts[0].values()} == {"meta"}


def test_a_part_of_a_model_on_the_device_meta(folder: Path) -> None:
    pytest.importorskip("accelerate")
    found = load(folder / "llama.tensorwire", "llama", device_map={"model": "cpu", "lm_head": "meta"})
    assert found.lm_head.weight.is_meta


def test_a_quantizer_is_copied_with_its_model(folder: Path) -> None:
    model = copy.deepcopy(load(folder / "llama.tensorwire", "llama"))
    assert type(model.hf_quantizer) is TensorwireQuantizer
    assert bits(outputs(model, generates=False)[0]) == bits(outputs(load(folder / "llama", "llama"))[0])
