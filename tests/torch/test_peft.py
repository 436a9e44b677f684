"""Adapters of PEFT that bring layers of the model along: embeddings, heads, new tokens. They are trained, saved and
loaded again on a compressed model with the bits of the dense one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

import safetensors.torch as safetensors_torch  # noqa: E402

import tensorwire  # noqa: E402
from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.integrations.transformers import TensorwireConfig  # noqa: E402
from tests.support.transformer_models import bits, load, num_compressed, save  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT warns of what it saves

NEW_TOKENS = 520
TOKENS = torch.randint(1, 512, (1, 8), generator=torch.Generator().manual_seed(1))
LORA = {"target_modules": ["q_proj"], "r": 2}

WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "new tokens": (LORA, {}),
    "new tokens, and a head that trains": ({**LORA, "modules_to_save": ["lm_head"]}, {}),
    "head": ({**LORA, "modules_to_save": ["lm_head"]}, {}),
    "embedding": ({**LORA, "modules_to_save": ["embed_tokens"]}, {}),
    "head and embedding": ({**LORA, "modules_to_save": ["lm_head", "embed_tokens"]}, {}),
    "LoRA of the embedding": ({"target_modules": ["q_proj", "embed_tokens"], "r": 2}, {}),
    "LoRA of the head": ({"target_modules": ["q_proj", "lm_head"], "r": 2}, {}),
    "embeddings are asked for": (LORA, {"save_embedding_layers": True}),
    "tokens that train": ({**LORA, "trainable_token_indices": [1, 2]}, {}),
    "DoRA of the head": ({"target_modules": ["lm_head"], "r": 2, "use_dora": True}, {}),
}
"""How an adapter is configured, and how it is saved."""

QUICK = {
    "llama": {"new tokens", "head", "LoRA of the embedding", "embeddings are asked for"},
    "llama-tied": {"new tokens, and a head that trains"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("models")
    for name in QUICK:
        save(name, root / name)
        tensorwire.compress_checkpoint(root / name, root / f"{name}.tensorwire")
    return root


def base(path: Path, name: str, way: str, **options: Any) -> Any:
    model = load(path, name, **options)
    if way.startswith("new tokens"):
        torch.manual_seed(0)
        model.resize_token_embeddings(NEW_TOKENS, mean_resizing=False)
    return model


def trained(model: Any, config: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**config, init_lora_weights=False))
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        adapted(TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return adapted


@torch.no_grad()
def logits(model: Any) -> Any:
    model.eval()
    return bits(model(TOKENS).logits)


def tensors(path: Path) -> dict[str, Any]:
    return {key: bits(t) for key, t in safetensors_torch.load_file(path / "adapter_model.safetensors").items()}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=() if way in QUICK[name] else pytest.mark.slow)
        for name, way in itertools.product(QUICK, WAYS)
    ],
)
def test_it_is_trained_saved_and_loaded_as_on_the_dense_model(
    folder: Path, tmp_path: Path, name: str, way: str
) -> None:
    config, options = WAYS[way]
    found = []
    for path in (folder / name, folder / f"{name}.tensorwire"):
        adapted = trained(base(path, name, way), config)
        before = logits(adapted)
        adapted.save_pretrained(tmp_path / path.name, **options)
        again = peft.PeftModel.from_pretrained(base(path, name, way), tmp_path / path.name)
        found.append((before, logits(again), tensors(tmp_path / path.name)))
        assert found[-1][1] == before
    assert found[1] == found[0]
    assert num_compressed(adapted) >= 8, "all that does not train"
    assert num_compressed(again) >= num_compressed(adapted)


@pytest.mark.slow
def test_a_trainer_saves_it(folder: Path, tmp_path: Path) -> None:
    found = []
    for path in (folder / "llama", folder / "llama.tensorwire"):
        config = peft.LoraConfig(**LORA, modules_to_save=["lm_head"])
        torch.manual_seed(0)
        adapted = peft.get_peft_model(base(path, "llama", "new tokens"), config)
        arguments = transformers.TrainingArguments(
            output_dir=tmp_path / path.name, max_steps=2, save_steps=1, report_to=[], use_cpu=True
        )
        data = [{"input_ids": TOKENS[0], "labels": TOKENS[0]}] * 8
        transformers.Trainer(adapted, arguments, train_dataset=data).train()
        found.append([tensors(tmp_path / path.name / f"checkpoint-{step}") for step in (1, 2)])
    assert found[1] == found[0]


def test_what_was_compressed_while_loading(folder: Path, tmp_path: Path) -> None:
    adapted = trained(base(folder / "llama", "llama", "head", quantization_config=TensorwireConfig()), WAYS["head"][0])
    adapted.save_pretrained(tmp_path / "a")
    trained(base(folder / "llama", "llama", "head"), WAYS["head"][0]).save_pretrained(tmp_path / "b")
    assert tensors(tmp_path / "a") == tensors(tmp_path / "b")


SAVED: dict[str, Callable[[Any, Path], object]] = {
    "save_file": lambda model, path: safetensors_torch.save_file(
        {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}, path
    ),
    "save_model": safetensors_torch.save_model,
}


@pytest.mark.parametrize("write", SAVED.values(), ids=SAVED)
def test_safetensors_saves_a_state_dict_as_the_dense_model_has_it(
    folder: Path, tmp_path: Path, write: Callable[[Any, Path], object]
) -> None:
    """What is tied is one tensor there, too, and the model stays compressed."""
    dense, model = (load(folder / name, "llama-tied") for name in ("llama-tied", "llama-tied.tensorwire"))
    before = num_compressed(model)
    for number, each in enumerate((dense, model)):
        write(each, tmp_path / str(number))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "0").read_bytes()
    assert num_compressed(model) == before
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
        dense.lm_head.weight.mul_(2)
    for number, each in enumerate((dense, model)):
        write(each, tmp_path / str(number))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "0").read_bytes()


def test_a_tensor_of_a_state_dict_that_was_written_to_is_no_other_one_s(folder: Path) -> None:
    model = load(folder / "llama-tied.tensorwire", "llama-tied")
    first, second = model.state_dict(), model.state_dict()
    wanted = model.lm_head.weight.decode()
    safetensors_torch.save({"a": first["lm_head.weight"]})
    first["lm_head.weight"].zero_()
    safetensors_torch.save({"a": second["lm_head.weight"]})
    assert not isinstance(second["lm_head.weight"], CompressedTensor)
    assert torch.equal(second["lm_head.weight"], wanted)


def test_a_converted_tensor_and_one_on_the_device_meta_have_memory_when_asked() -> None:
    weight = CompressedTensor.from_dense(torch.randn(300, 300))
    converted = weight.to(torch.float16)
    twin = converted.detach()
    assert twin.storage().data_ptr() == converted.storage().data_ptr()
    assert torch.equal(converted, weight.decode().half())
    with torch.inference_mode():
        weight.storage()
    assert not weight.is_inference()
    empty = CompressedTensor.from_dense(torch.randn(300, 300)).to("meta")
    assert empty.storage().nbytes() == 360_000
