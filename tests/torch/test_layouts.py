"""How config, index and files of a model may lie: compressed, Transformers loads each as it loads the original, or a
notice says why not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tensorwire

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tensorwire.torch.integrations.transformers import TensorwireConfig  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own and torch's future

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model, whole and in shards."""
    path = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=200, num_key_value_heads=2, **sizes))
    made.bfloat16().save_pretrained(path / "whole")
    made.save_pretrained(path / "shards", max_shard_size="60KB")
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    members = json.loads(path.read_text())
    change(members)
    path.write_text(json.dumps(members))


def put_below(path: Path, folder: str) -> None:
    """Move all shards into a folder, which the index names."""
    (path / folder).mkdir()
    for file in path.glob("*.safetensors"):
        shutil.move(file, path / folder / file.name)
    edit(path / INDEX, lambda index: name_files(index, lambda file: f"{folder}/{file}"))


def name_files(index: dict[str, Any], rename: Callable[[str], str]) -> None:
    index["weight_map"] = {name: rename(file) for name, file in index["weight_map"].items()}


def shards(path: Path) -> None:
    shutil.copytree(path.parent / "shards", path, dirs_exist_ok=True)
    (path / "model.safetensors").unlink()


def shards_in_a_folder(path: Path) -> None:
    shards(path)
    put_below(path, "shards")


def variant(path: Path) -> dict[str, Any]:
    (path / "model.safetensors").rename(path / "model.fp16.safetensors")
    return {"variant": "fp16"}


def variant_of_shards(path: Path) -> dict[str, Any]:
    shards(path)
    (path / INDEX).rename(path / "model.safetensors.index.fp16.json")
    return {"variant": "fp16"}


def subfolder(path: Path) -> dict[str, Any]:
    shutil.copytree(path, path.parent / "sub")
    shutil.rmtree(path)
    path.mkdir()
    (path.parent / "sub").rename(path / "sub")
    return {"subfolder": "sub"}


def named_by_config(path: Path, place: str) -> None:
    (path / place).parent.mkdir(exist_ok=True)
    (path / "model.safetensors").rename(path / place)
    edit(path / "config.json", lambda config: config.update(transformers_weights=place))


def index_named_by_config(path: Path) -> None:
    shards(path)
    put_below(path, "w")
    (path / INDEX).rename(path / "w" / "x.safetensors.index.json")
    edit(path / "config.json", lambda config: config.update(transformers_weights="w/x.safetensors.index.json"))


def config_of_another_name(path: Path) -> dict[str, Any]:
    (path / "config.json").rename(path / "base.json")
    return {"config": "base.json"}


def key_twice(path: Path) -> None:
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace("{", '{"hidden_size": 1,', 1))


def torch_file_beside(path: Path) -> None:
    torch.save({"weight": torch.zeros(2000)}, path / "pytorch_model.bin")


def stale_index(path: Path) -> None:
    shutil.copy(path.parent / "shards" / INDEX, path)


def odd_index(path: Path) -> None:
    shards(path)
    edit(path / INDEX, lambda index: name_files(index, lambda file: f"./{file}"))
    text = (path / INDEX).read_text()
    first = min(json.loads(text)["weight_map"].values())
    (path / INDEX).write_text(text.replace('"weight_map": {', f'"weight_map": {{"x.weight": "{first}",', 1))


LAYOUTS: dict[str, Callable[[Path], dict[str, Any] | None]] = {
    "whole": lambda path: None,
    "shards": shards,
    "shards in a folder": shards_in_a_folder,
    "variant": variant,
    "variant of shards": variant_of_shards,
    "subfolder": subfolder,
    "named by config": lambda path: named_by_config(path, "other.safetensors"),
    "named by config, in a folder": lambda path: named_by_config(path, "w/model.safetensors"),
    "index named by config": index_named_by_config,
    "config of another name": config_of_another_name,
    "config with a key twice": key_twice,
    "torch file beside": torch_file_beside,
    "stale index": stale_index,
    "odd index": odd_index,
}


def weights(path: Path, options: dict[str, Any]) -> dict[str, bytes]:
    options = dict(options)
    if "config" in options:
        options["config"] = transformers.AutoConfig.from_pretrained(path / options["config"])
    model = transformers.AutoModelForCausalLM.from_pretrained(path, **options)
    return {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in model.state_dict().items()}


def laid_out(model: Path, tmp_path: Path, layout: str) -> tuple[Path, dict[str, Any]]:
    shutil.copytree(model / "whole", tmp_path / "model")
    shutil.copytree(model / "shards", tmp_path / "shards")
    return tmp_path / "model", LAYOUTS[layout](tmp_path / "model") or {}


SLOW = {"whole", "shards", "variant", "variant of shards", "subfolder", "named by config", "torch file beside"}
"""They lie as most models do."""


@pytest.mark.parametrize(
    "layout", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in LAYOUTS]
)
def test_loads_like_the_original(model: Path, tmp_path: Path, layout: str) -> None:
    path, options = laid_out(model, tmp_path, layout)
    report = tensorwire.compress_checkpoint(path, tmp_path / "packed")
    assert sum(file.num_compressed for file in report.files) >= 4
    assert not any("no configuration" in notice for notice in report.notices)
    assert weights(tmp_path / "packed", options) == weights(path, options)
    tensorwire.decompress_checkpoint(tmp_path / "packed", tmp_path / "again")
    for file in filter(Path.is_file, path.rglob("*")):
        assert (tmp_path / "again" / file.relative_to(path)).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("layout", ["no config", "config above", "config that is none"])
def test_a_notice_says_that_no_config_was_changed(model: Path, tmp_path: Path, layout: str) -> None:
    path, options = laid_out(model, tmp_path, "subfolder" if layout == "config above" else "whole")
    file = "sub/model.safetensors" if options else "model.safetensors"
    (path / file).with_name("config.json").unlink()
    shutil.copy(model / "whole" / "config.json", path if options else tmp_path)
    if layout == "config that is none":
        (path / "config.json").write_text("{")
    report = tensorwire.compress_checkpoint(path, tmp_path / "packed")
    *others, notice = report.notices
    assert notice == (
        f"no configuration tells of the compressed {file}; Transformers loads the model if you pass it a config whose "
        "quantization_config is TensorwireConfig().to_dict()"
    )
    assert [each[:35] for each in others] == ["copied as it is: config.json: expec"] * (layout == "config that is none")
    config = transformers.AutoConfig.from_pretrained(model / "whole")
    config.quantization_config = TensorwireConfig().to_dict()
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "packed", config=config, **options)
    assert torch.equal(found.lm_head.weight, tensorwire.load_file(model / "whole", framework="pt")["lm_head.weight"])
