"""A compressed checkpoint in the hands of Hugging Face transformers.

A loader that does not know us fails, unless it is told to carry on with weights that it has made up; either way it
prints the way out. And the same files must suit a loader that does know us: the quantizer below is a sketch of one, to
prove that the naming scheme serves both.
"""

from __future__ import annotations

import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

import tensorwire
from tensorwire.checkpoint.directory.config_and_index import METHOD
from tensorwire.checkpoint.file.names import payload_name

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")
torch = pytest.importorskip("torch")

from transformers.core_model_loading import ConversionOps, WeightConverter, WeightRenaming  # noqa: E402
from transformers.quantizers import HfQuantizer, auto  # noqa: E402
from transformers.utils.quantization_config import QuantizationConfigMixin  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own and torch's future

SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
# Shapes that differ; or, where a model fuses tensors, a marker that cannot be fused.
REFUSAL = r"ignore_mismatched_sizes|size mismatch|automatic conversion of the weights"
LLAMA = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64}


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**SIZES))


def llama(tied: bool) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, tie_word_embeddings=tied))


def moe() -> Any:
    """Experts are separate tensors on disk, one fused tensor in the model."""
    extra = {"moe_intermediate_size": 64, "num_experts": 12, "num_experts_per_tok": 2, "head_dim": 16}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**LLAMA, **extra))


def mamba() -> Any:
    """Parameters A_log and D: upper case sorts before the underscore of a payload's name."""
    config = transformers.MambaConfig(vocab_size=256, hidden_size=64, num_hidden_layers=2, state_size=16)
    return transformers.MambaForCausalLM(config)


# name: (how it is loaded, how it is made)
MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "bert": ("AutoModel", bert),
    "llama": ("AutoModelForCausalLM", lambda: llama(tied=False)),
    "llama-tied": ("AutoModelForCausalLM", lambda: llama(tied=True)),
    "llama-headless": ("AutoModel", lambda: llama(tied=False)),
    "moe": ("AutoModelForCausalLM", moe),
    "mamba": ("AutoModelForCausalLM", mamba),
}


@pytest.fixture(scope="module", params=["one-file", "sharded"])
def shard_size(request: pytest.FixtureRequest) -> str:
    return {"one-file": "1GB", "sharded": "100KB"}[request.param]


@pytest.fixture(scope="module", params=MODELS)
def original(request: pytest.FixtureRequest, shard_size: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path: Path = tmp_path_factory.mktemp("original") / request.param
    MODELS[request.param][1]().to(torch.bfloat16).save_pretrained(path, max_shard_size=shard_size)
    assert (len(list(path.glob("*.safetensors"))) > 1) == (shard_size == "100KB")
    return path


@pytest.fixture
def compressed(original: Path, tmp_path: Path) -> Path:
    path = tmp_path / "compressed"
    report = tensorwire.compress_checkpoint(original, path)
    assert any(file.num_compressed for file in report.files)
    return path


def edit_tensors(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the tensors of each file of a checkpoint, and its index with them."""
    where = {}
    for file in path.glob("*.safetensors"):
        tensors = safetensors_torch.load_file(file)
        edit(tensors)
        safetensors_torch.save_file(tensors, file, metadata={"format": "pt"})
        where.update(dict.fromkeys(tensors, file.name))
    index = path / "model.safetensors.index.json"
    if index.exists():
        index.write_text(json.dumps({**json.loads(index.read_text()), "weight_map": where}))


def edit_config(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((path / "config.json").read_text())
    edit(config)
    (path / "config.json").write_text(json.dumps(config))


def load(path: Path, like: Path, **options: Any) -> Any:
    return getattr(transformers, MODELS[like.name][0]).from_pretrained(path, **options)


def bits(model: Any) -> dict[str, tuple[Any, Any, bytes]]:
    return {
        name: (tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in model.state_dict().items()
    }


# A loader that does not know us ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_key", [True, False], ids=["quantization_config", "key-removed"])
def test_loading_raises(original: Path, compressed: Path, keep_key: bool) -> None:
    if not keep_key:
        edit_config(compressed, lambda config: config.pop("quantization_config"))
    with pytest.raises(RuntimeError, match=REFUSAL):
        load(compressed, original)


@pytest.mark.parametrize("ignore", [False, True], ids=["refused", "ignore_mismatched_sizes"])
def test_what_is_printed_names_the_way_out(
    original: Path, compressed: Path, ignore: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)  # to where pytest looks
    with caplog.at_level("WARNING"), contextlib.suppress(RuntimeError):
        load(compressed, original, ignore_mismatched_sizes=ignore)
    assert "Unknown quantization type, got tensorwire (first run: tensorwire decompress)" in caplog.text


def test_ignoring_mismatched_sizes_loads_random_weights(original: Path, compressed: Path) -> None:
    """Nothing in a file can prevent it; so no page promises that it does not happen."""
    expected = bits(load(original, original))
    found = bits(load(compressed, original, ignore_mismatched_sizes=True))
    assert any(value != expected[name] for name, value in found.items())


def test_one_compressed_tensor_is_enough_to_raise(original: Path, compressed: Path) -> None:
    with tensorwire.open_file(next(original.glob("*.safetensors"))) as file:
        kept = max(file.keys(), key=lambda name: (name != "lm_head.weight", file.get_tensor(name).nbytes))

    def restore_all_others(tensors: dict[str, Any]) -> None:
        for name in [name for name, tensor in tensors.items() if not tensor.numel() and name != kept]:
            tensors[name] = tensorwire.decompress(tensors.pop(payload_name(name)), framework="pt")

    edit_tensors(compressed, restore_all_others)
    with pytest.raises(RuntimeError, match=REFUSAL):
        load(compressed, original)


def test_without_the_markers_it_would_load_random_weights(original: Path, compressed: Path) -> None:
    """Why there are markers. Should this begin to raise, they have done their work."""

    def drop_markers(tensors: dict[str, Any]) -> None:
        for name in [name for name, tensor in tensors.items() if not tensor.numel()]:
            del tensors[name]

    edit_tensors(compressed, drop_markers)
    expected = bits(load(original, original))
    assert any(value != expected[name] for name, value in bits(load(compressed, original)).items())


def test_state_dict_loaders_raise(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    safetensors_torch.save_file(module.state_dict(), tmp_path / "original.safetensors")
    file = tmp_path / "compressed.safetensors"
    tensorwire.compress_checkpoint(tmp_path / "original.safetensors", file)
    for strict in (True, False):
        with pytest.raises(RuntimeError, match="size mismatch"):
            module.load_state_dict(safetensors_torch.load_file(file), strict=strict)
        with pytest.raises(RuntimeError, match="size mismatch"):
            safetensors_torch.load_model(module, file, strict=strict)


# A loader that knows us: a sketch -------------------------------------------------------------------------------------


class DecodeFrames(ConversionOps):
    """Comes before a model's own operations: frames become tensors, markers go."""

    def __init__(self, quantizer: HfQuantizer) -> None:
        self.hf_quantizer = quantizer  # tells transformers not to cast what this operation reads

    def convert(self, input_dict: dict[str, Any], **context: Any) -> dict[str, Any]:
        return {name: [self._decoded(t) for t in tensors if t.numel()] for name, tensors in input_dict.items()}

    def _decoded(self, tensor: Any) -> Any:
        is_frame = tensor.dtype == torch.uint8 and tensor.ndim == 1
        return tensorwire.decompress(tensor, framework="pt") if is_frame else tensor


class DecodeParameter(DecodeFrames):
    """For parameters that no operation of the model's own makes."""

    def convert(self, input_dict: dict[str, Any], full_layer_name: str, **context: Any) -> dict[str, Any]:
        (tensor,) = (tensor for tensors in super().convert(input_dict).values() for tensor in tensors)
        return {full_layer_name: tensor}


class SketchConfig(QuantizationConfigMixin):
    def __init__(self, **options: Any) -> None:
        self.quant_method = METHOD


class SketchQuantizer(HfQuantizer):
    is_trainable = True

    def is_serializable(self) -> bool:
        return False

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        # First of all a payload takes its tensor's name: from there on it goes wherever the marker beside it goes.
        renaming = WeightRenaming(r"(?<![^.])_(\w+)_tensorwire$", r"\1")
        conversions = [
            conversion.copy(
                list(conversion._original_source_patterns),
                list(conversion._original_target_patterns),
                operations=[DecodeFrames(self), *conversion.operations],
            )
            if isinstance(conversion, WeightConverter)
            else conversion
            for conversion in weight_conversions
        ]
        return [renaming, *conversions, WeightConverter(r"(\w+)$", r"\1", [DecodeParameter(self)])]


@pytest.fixture
def registered() -> Iterator[None]:
    auto.register_quantization_config(METHOD)(SketchConfig)
    auto.register_quantizer(METHOD)(SketchQuantizer)
    yield
    del auto.AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD]
    del auto.AUTO_QUANTIZER_MAPPING[METHOD]


@pytest.mark.usefixtures("registered")
def test_registered_quantizer_loads_every_bit(original: Path, compressed: Path) -> None:
    assert bits(load(compressed, original)) == bits(load(original, original))
