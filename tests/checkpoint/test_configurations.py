"""Which files of a directory tell that its weights are compressed, and what is said where none does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tensorwire.checkpoint import compress_checkpoint, decompress_checkpoint, transcode_checkpoint
from tensorwire.checkpoint.directory.config_and_index import CONFIG_KEY, METHOD
from tests.support.checkpoint_models import container, weights

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "transformers_version": "5.24.0"}
INDEX = {"metadata": {}, "weight_map": {"w": "shards/a.safetensors"}}
LARGE = {**CONFIG, "id2label": "x" * (1 << 18)}
FILE = "model.safetensors"
TOKENIZER = {"model_type": "llama", "tokenizer_class": "LlamaTokenizer"}
SENTENCES = {"model_type": "SentenceTransformer", "__version__": {"transformers": "5.24.0"}}
MODULES = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}, {"path": "3_Bert"}]
NOTICE = "no configuration tells of the compressed {}; Transformers loads the model if you pass it a config whose"


def write(root: Path, files: dict[str, Any]) -> None:
    for path, value in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if value is None:
            place.write_bytes(container([("w", "BF16", (5000,), weights(5000, 1))]))
        else:
            place.write_text(value if isinstance(value, str) else json.dumps(value))


def changed(root: Path) -> list[str]:
    """The files that say it."""
    found = []
    for path in sorted(root.rglob("*.json")):
        value = json.loads(path.read_text()) if path.name not in ("text.json", "tensorwire.json") else {}
        if isinstance(value, dict) and value.get(CONFIG_KEY, {}).get("quant_method") == METHOD:
            found.append(path.relative_to(root).as_posix())
    return found


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"config.json": {}, FILE: None}, ["config.json"]),
        ({"config.json": {}, "base.json": CONFIG, FILE: None}, ["base.json", "config.json"]),
        ({"a/base.json": {**CONFIG, "architectures": []}, f"a/{FILE}": None}, ["a/base.json"]),
        ({"config.json": {}, "tokenizer.json": TOKENIZER, "s.json": SENTENCES, FILE: None}, ["config.json"]),
        ({"config.json": {}, "large.json": LARGE, "text.json": '{"model_type"', FILE: None}, ["config.json"]),
        ({"config.json": {}, "list.json": '["model_type", "architectures"]', FILE: None}, ["config.json"]),
        ({"config.json": {}, "model.safetensors.index.json": INDEX, "shards/a.safetensors": None}, ["config.json"]),
        ({"config.json": {}, "a/model.safetensors.index.json": INDEX, "a/shards/a.safetensors": None}, []),
        ({"config.json": {"transformers_weights": f"./w/{FILE}"}, f"w/{FILE}": None}, ["config.json"]),
        ({"config.json": {"transformers_weights": "w/b"}, "w/a.safetensors": None}, []),
        ({"config.json": {"transformers_weights": 3}, "w/a.safetensors": None}, []),
        ({"a/config.json": {"transformers_weights": f"../b/{FILE}"}, "b/b.safetensors": None}, []),
        (
            {
                "config.json": {"transformers_weights": "w/x.safetensors.index.json"},
                "w/x.safetensors.index.json": {"weight_map": {"w": "v/a.safetensors"}},
                "v/a.safetensors": None,
            },
            ["config.json"],
        ),
        ({"config.json": '{"a": 1, "a": 2}', FILE: None}, ["config.json"]),
        (  # sentence-transformers reads its own layers, and has Transformers read a model
            {
                "modules.json": MODULES,
                "config.json": {},
                FILE: None,
                "2_Dense/config.json": {"in_features": 8},
                f"2_Dense/{FILE}": None,
                "3_Bert/config.json": CONFIG,
                f"3_Bert/{FILE}": None,
            },
            ["3_Bert/config.json", "config.json"],
        ),
        (
            {
                "a/modules.json": MODULES,
                "a/2_Dense/config.json": {},
                f"a/2_Dense/{FILE}": None,
                "b/2_Dense/config.json": {},
                f"b/2_Dense/{FILE}": None,
            },
            ["b/2_Dense/config.json"],
        ),
        ({"modules.json": '"2_Dense"', "2_Dense/config.json": {}, f"2_Dense/{FILE}": None}, ["2_Dense/config.json"]),
    ],
)
def test_what_tells(tmp_path: Path, files: dict[str, Any], expected: list[str]) -> None:
    write(tmp_path / "model", files)
    report = compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    assert changed(tmp_path / "packed") == expected
    assert report.notices == ()
    transcode_checkpoint(tmp_path / "packed", tmp_path / "other", profile="compact")
    assert changed(tmp_path / "other") == expected
    decompress_checkpoint(tmp_path / "packed", tmp_path / "again")
    for path in files:
        assert (tmp_path / "again" / path).read_bytes() == (tmp_path / "model" / path).read_bytes()


@pytest.mark.parametrize(
    ("files", "notices"),
    [
        ({FILE: None}, [NOTICE.format(FILE)]),
        ({"config.json": {}, f"a/{FILE}": None, f"b/{FILE}": None}, [NOTICE.format(f"a/{FILE} and 1 more")]),
        ({"config.json": "[]", FILE: None}, ["copied as it is: config.json: expected a JSON", NOTICE.format(FILE)]),
        ({"config.json": "[]", "a/adapter_model.safetensors": None}, []),
    ],
)
def test_a_notice_says_that_none_does(tmp_path: Path, files: dict[str, Any], notices: list[str]) -> None:
    write(tmp_path / "model", files)
    report = compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    assert len(report.notices) == len(notices)
    assert all(found.startswith(notice) for found, notice in zip(report.notices, notices, strict=True))


def test_parts_say_nothing_of_it(tmp_path: Path) -> None:
    """The call that puts them together does."""
    write(tmp_path / "model", {FILE: None, "config.json": {}, "b/model.safetensors": None})
    for path in (FILE, "b/model.safetensors"):
        assert not compress_checkpoint(tmp_path / "model", tmp_path / "packed", files=[path]).notices
    (notice,) = compress_checkpoint(tmp_path / "model", tmp_path / "packed").notices
    assert notice.startswith(NOTICE.format("b/model.safetensors"))


def test_a_config_with_a_key_twice_is_refused_once_it_is_compressed(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": f'{{"a": 1, "{CONFIG_KEY}": {{"quant_method": "{METHOD}"}}, "a": 2}}', FILE: None})
    with pytest.raises(ValueError, match="is compressed already"):
        compress_checkpoint(tmp_path, tmp_path.parent / "packed")
