"""Whole checkpoints: directories and single files come back byte for byte."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire import FrameReader, compress
from tensorwire.checkpoint import (
    compress_checkpoint,
    decompress_checkpoint,
    load_file,
    save_file,
    transcode_checkpoint,
)
from tensorwire.files import reader
from tests.support import registry
from tests.support.acting import acting
from tests.support.checkpoint_models import (
    SHARD,
    container,
    layer,
    random_bytes,
    read_header,
    tree_hashes,
    weights,
    write_model,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("profile", ["fast", "compact", "resident", "enec"])
def test_directory_round_trip(model: Path, tmp_path: Path, profile: Any) -> None:
    before = tree_hashes(model)
    report = compress_checkpoint(model, tmp_path / "packed", profile=profile)
    assert tree_hashes(model) == before
    assert (report.action, report.profile, report.exact) == ("compress", profile, True)
    assert {file.path: file.nbytes_in for file in report.files} == {
        **{name: (model / name).stat().st_size for name in before},
        "tensorwire.json": 0,
    }
    assert all(file.nbytes_out == (tmp_path / "packed" / file.path).stat().st_size for file in report.files)
    assert report.ratio > 1.1
    assert set(tree_hashes(tmp_path / "packed")) == set(before) | {"tensorwire.json"}
    report = decompress_checkpoint(tmp_path / "packed", tmp_path / "back")
    assert tree_hashes(tmp_path / "back") == before
    assert (report.action, report.profile, report.exact) == ("decompress", profile, True)
    assert report.ratio > 1.1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["back", "model", "packed"]


def test_the_header_of_each_file_is_parsed_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: Counter[bytes] = Counter()
    acting(monkeypatch, reader, "parse_header", lambda raw, nbytes: parsed.update([raw]))
    compress_checkpoint(model, tmp_path / "old")
    transcode_checkpoint(tmp_path / "old", tmp_path / "compact", profile="compact")
    for path in model.rglob("*.safetensors"):  # the last tensor of each is another one
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    compress_checkpoint(model, tmp_path / "new", base=tmp_path / "old")
    decompress_checkpoint(tmp_path / "new", tmp_path / "back", base=tmp_path / "old")
    files = [model, model, tmp_path / "old", tmp_path / "old", tmp_path / "old", tmp_path / "new"]
    assert parsed == Counter(raw_header(path) for root in files for path in root.rglob("*.safetensors"))


def raw_header(path: Path) -> bytes:
    data = path.read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def test_what_a_compressed_directory_holds(model: Path, packed: Path) -> None:
    config = json.loads((packed / "config.json").read_bytes())
    ours = config.pop("quantization_config")
    # The dtype of the first tensor by name, attn.weight: it does not stand in the original.
    assert config == {**json.loads((model / "config.json").read_bytes()), "dtype": "float32"}
    method = ours.pop("quant_method")
    assert method.startswith("tensorwire (")
    assert all(way in method for way in ("install it", "import tensorwire.torch", "tensorwire decompress"))
    assert ours == {"version": 1, "profile": "fast"}
    vae = json.loads((packed / "vae" / "config.json").read_bytes())
    assert vae["quantization_config"]["quant_method"] == method
    index = json.loads((packed / "model.safetensors.index.json").read_bytes())
    found = {
        name: path.name for path in packed.glob("*.safetensors") for name in read_header(path) if name != "__metadata__"
    }
    assert index["weight_map"] == found
    sizes = [end["data_offsets"][1] for path in packed.glob("*.safetensors") for end in _tensors(path)]
    assert index["metadata"]["total_size"] <= sum(sizes)
    for name in ("tokenizer.json", "training_args.bin", "empty.txt", "assets/deep/image.png"):
        assert (packed / name).read_bytes() == (model / name).read_bytes()
    manifest = json.loads((packed / "tensorwire.json").read_bytes())
    assert {file["path"]: file["sha256"] for file in manifest["files"]} == tree_hashes(model)


def _tensors(path: Path) -> list[dict[str, Any]]:
    return [entry for name, entry in read_header(path).items() if name != "__metadata__"]


def test_an_existing_quantization_config_is_kept_inside(tmp_path: Path) -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    write_model(tmp_path / "model", config={"quantization_config": fp8})
    compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    config = json.loads((tmp_path / "packed" / "config.json").read_bytes())
    assert config["quantization_config"]["quant_method"].startswith("tensorwire ")
    assert config["quantization_config"]["wrapped"] == fp8
    decompress_checkpoint(tmp_path / "packed", tmp_path / "back")
    assert tree_hashes(tmp_path / "back") == tree_hashes(tmp_path / "model")


@pytest.mark.parametrize("content", [b"not json", b"[1]", b"", b"\xff", b"[" * 100_000])
def test_a_configuration_that_is_no_object_travels_along(tmp_path: Path, content: bytes) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_bytes(content)
    compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    assert (tmp_path / "packed" / "config.json").read_bytes() == content
    decompress_checkpoint(tmp_path / "packed", tmp_path / "back")
    assert tree_hashes(tmp_path / "back") == tree_hashes(tmp_path / "model")


def test_a_hub_cache_of_links(model: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    for name, digest in tree_hashes(model).items():
        (blobs / digest).write_bytes((model / name).read_bytes())
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(blobs / digest)
    compress_checkpoint(snapshot, tmp_path / "packed")
    assert not any(path.is_symlink() for path in (tmp_path / "packed").rglob("*"))
    decompress_checkpoint(tmp_path / "packed", tmp_path / "back")
    assert tree_hashes(tmp_path / "back") == tree_hashes(model)


def test_strange_names_travel(model: Path, tmp_path: Path) -> None:
    for name in ("new\nline", "\x1b[2J", "...", "\u540d \u524d", "-rf", "a.safetensors.index.jsonl"):
        (model / name).write_bytes(name.encode())
    compress_checkpoint(model, tmp_path / "packed")
    decompress_checkpoint(tmp_path / "packed", tmp_path / "back")
    assert tree_hashes(tmp_path / "back") == tree_hashes(model)


@pytest.mark.parametrize("profile", ["fast", "compact", "resident", "enec"])
def test_single_file_round_trip(tmp_path: Path, profile: Any) -> None:
    source, packed, back = tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "c.safetensors"
    # An order of tensors and a padding that no writer of ours would choose.
    entries = [*layer(3, 1), ("0.first", "I64", (), bytes(8)), ("none", "F64", (0, 4), b""), ("f4", "F4", (2, 1), b"1")]
    source.write_bytes(container(entries, {"format": "pt", "x": "\u00e4"}, padding=777))
    report = compress_checkpoint(source, packed, profile=profile)
    assert report.nbytes_out == packed.stat().st_size < source.stat().st_size
    assert decompress_checkpoint(packed, back).exact
    assert back.read_bytes() == source.read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors", "c.safetensors"]


EMPTY = ("m.a", "F6_E2M3", (0,), b"")  # as a marker, but without a payload


@pytest.mark.parametrize(
    "entries",
    [[], [("a", "F32", (0,), b"")], [("a", "U8", (5,), b"12345")], [EMPTY, ("m.b", "BF16", (5000,), weights(5000, 1))]],
)
def test_files_that_gain_nothing_or_are_empty(tmp_path: Path, entries: Any) -> None:
    (tmp_path / "a").write_bytes(container(entries))
    compress_checkpoint(tmp_path / "a", tmp_path / "b")
    assert load_file(tmp_path / "b", framework="bytes").keys() == {name for name, *_ in entries}
    decompress_checkpoint(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()


def test_a_configuration_stays_when_nothing_is_compressed(tmp_path: Path) -> None:
    root = tmp_path / "model"
    root.mkdir()
    (root / "config.json").write_text("{}")
    (root / "model.safetensors").write_bytes(container([("a", "U8", (5000,), random_bytes(5000, 1))]))
    compress_checkpoint(root, tmp_path / "packed")
    assert (tmp_path / "packed" / "config.json").read_text() == "{}"


@pytest.fixture(scope="module")
def by_profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, compressed in each profile."""
    root = tmp_path_factory.mktemp("profiles")
    write_model(root / "model")
    for profile in registry.PROFILES:
        compress_checkpoint(root / "model", root / profile, profile=profile)  # type: ignore[arg-type]
    return root


@pytest.mark.parametrize("old", registry.PROFILES)
@pytest.mark.parametrize("new", registry.PROFILES)
def test_transcoding_gives_what_compressing_gives(by_profile: Path, tmp_path: Path, old: Any, new: Any) -> None:
    report = transcode_checkpoint(by_profile / old, tmp_path / "new", profile=new)
    assert (report.action, report.profile) == ("transcode", new)
    assert tree_hashes(tmp_path / "new") == tree_hashes(by_profile / new)


def test_transcoding_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(container(layer(0, 1), padding=5))
    compress_checkpoint(tmp_path / "a", tmp_path / "b", profile="enec")
    transcode_checkpoint(tmp_path / "b", tmp_path / "c", profile="compact")
    compress_checkpoint(tmp_path / "a", tmp_path / "d", profile="compact")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "d").read_bytes()


def test_blocks_that_are_rows_of_parts_are_those_of_one_call(tmp_path: Path) -> None:
    """Tensors are below and beyond a window, and come from a file, a compressed one, a stream or memory."""
    mixed = registry.mixed_input("F32")
    words = np.frombuffer(mixed.data, np.float32)
    tensors = {"a.bias": words[:1000], "b.small": words, "c.large": np.resize(words, 3_000_001)}
    small, large = (compress(tensors[name], profile="compact") for name in ("b.small", "c.large"))
    for frame in (small, large):
        reader = FrameReader(frame)
        kinds = {block.kind for block in reader.block_infos(frame[reader.info.header_nbytes :])}
        assert "parts" in kinds
    entries = [(name, "F32", words.shape, words.tobytes()) for name, words in tensors.items()]
    (tmp_path / "a").write_bytes(container(entries))
    for profile in ("resident", "compact"):
        compress_checkpoint(tmp_path / "a", tmp_path / profile, profile=profile)
    transcode_checkpoint(tmp_path / "resident", tmp_path / "transcoded", profile="compact")
    assert (tmp_path / "transcoded").read_bytes() == (tmp_path / "compact").read_bytes()
    save_file(tensors, tmp_path / "saved", profile="compact")
    for name in ("compact", "saved"):
        data = (tmp_path / name).read_bytes()
        assert small in data
        assert large in data
    decompress_checkpoint(tmp_path / "compact", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "a").read_bytes()


def test_a_shard_alone_can_be_decompressed(packed: Path, model: Path, tmp_path: Path) -> None:
    assert decompress_checkpoint(packed / SHARD, tmp_path / "shard").exact
    assert (tmp_path / "shard").read_bytes() == (model / SHARD).read_bytes()


def test_an_index_of_files_that_are_not_there_stays(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    text = '{"weight_map": {"a": "model-00009-of-00009.safetensors"}}'
    (tmp_path / "model" / "model.safetensors.index.fp16.json").write_text(text)
    compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    assert (tmp_path / "packed" / "model.safetensors.index.fp16.json").read_text() == text
