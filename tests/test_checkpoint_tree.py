"""Whole checkpoints: directories and single files come back byte for byte, and hostile ones do no harm."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checkpoint_models import container, layer, random_bytes, read_header, tree_hashes, weights, write_model

from tensorwire.checkpoint import (
    compress_checkpoint,
    decompress_checkpoint,
    diff,
    inspect,
    load_file,
    save_file,
    transcode_checkpoint,
    verify,
)
from tensorwire.errors import CorruptDataError, FormatError, LimitExceededError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_model(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def packed(model: Path, tmp_path: Path) -> Path:
    compress_checkpoint(model, tmp_path / "packed")
    return tmp_path / "packed"


def edit_manifest(root: Path, change: Callable[[dict[str, Any]], object], *, sign: bool = True) -> None:
    """Change a manifest, with a checksum that is right again."""
    body = json.loads((root / "tensorwire.json").read_bytes())
    del body["checksum"]
    change(body)
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    body["checksum"] = hashlib.sha256(canonical.encode()).hexdigest() if sign else "0" * 64
    (root / "tensorwire.json").write_text(json.dumps(body))


@pytest.mark.parametrize("profile", ["fast", "compact", "enec"])
def test_directory_round_trip(model: Path, tmp_path: Path, profile: Any) -> None:
    before = tree_hashes(model)
    report = compress_checkpoint(model, tmp_path / "packed", profile=profile)
    assert tree_hashes(model) == before
    assert (report.action, report.profile, report.exact, report.dry_run) == ("compress", profile, True, False)
    assert {file.path: file.nbytes_in for file in report.files} == {
        name: (model / name).stat().st_size for name in before
    }
    assert all(file.nbytes_out == (tmp_path / "packed" / file.path).stat().st_size for file in report.files)
    assert report.ratio > 1.1
    assert set(tree_hashes(tmp_path / "packed")) == set(before) | {"tensorwire.json"}
    report = decompress_checkpoint(tmp_path / "packed", tmp_path / "back")
    assert tree_hashes(tmp_path / "back") == before
    assert (report.action, report.profile, report.exact) == ("decompress", profile, True)
    assert report.ratio > 1.1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["back", "model", "packed"]


def test_what_a_compressed_directory_holds(model: Path, packed: Path) -> None:
    config = json.loads((packed / "config.json").read_bytes())
    ours = config.pop("quantization_config")
    assert config == json.loads((model / "config.json").read_bytes())
    assert ours == {"quant_method": "tensorwire", "version": 0, "profile": "fast"}
    assert (
        json.loads((packed / "vae" / "config.json").read_bytes())["quantization_config"]["quant_method"] == "tensorwire"
    )
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
    assert config["quantization_config"]["quant_method"] == "tensorwire"
    assert config["quantization_config"]["wrapped"] == fp8
    decompress_checkpoint(tmp_path / "packed", tmp_path / "back")
    assert tree_hashes(tmp_path / "back") == tree_hashes(tmp_path / "model")


@pytest.mark.parametrize("content", [b"not json", b"[1]", b'{"a": 1, "a": 2}', b"", b"\xff", b"[" * 100_000])
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


def test_links_to_directories_are_refused(model: Path, tmp_path: Path) -> None:
    (model / "link").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ValueError, match="link to a directory"):
        compress_checkpoint(model, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_what_is_no_file_is_refused(model: Path, tmp_path: Path) -> None:
    os.mkfifo(model / "pipe")
    with pytest.raises(ValueError, match="neither a file nor a directory"):
        compress_checkpoint(model, tmp_path / "packed")
    (model / "pipe").unlink()
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(OSError, match="regular"):
        compress_checkpoint(tmp_path / "pipe.safetensors", tmp_path / "packed")
    (model / "broken").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        compress_checkpoint(model, tmp_path / "packed")


@pytest.mark.parametrize("name", ["back\\slash", os.fsdecode(b"\xff")])
def test_names_that_a_manifest_cannot_hold_are_refused(model: Path, tmp_path: Path, name: str) -> None:
    (model / name).write_bytes(b"")
    with pytest.raises(ValueError, match="rename"):
        compress_checkpoint(model, tmp_path / "packed")


def test_strange_names_travel(model: Path, tmp_path: Path) -> None:
    for name in ("new\nline", "\x1b[2J", "...", "\u540d \u524d", "-rf", "a.safetensors.index.jsonl"):
        (model / name).write_bytes(name.encode())
    compress_checkpoint(model, tmp_path / "packed")
    decompress_checkpoint(tmp_path / "packed", tmp_path / "back")
    assert tree_hashes(tmp_path / "back") == tree_hashes(model)


@pytest.mark.parametrize("profile", ["fast", "compact", "enec"])
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


@pytest.mark.parametrize("entries", [[], [("a", "F32", (0,), b"")], [("a", "U8", (5,), b"12345")]])
def test_files_that_gain_nothing(tmp_path: Path, entries: Any) -> None:
    (tmp_path / "a").write_bytes(container(entries))
    compress_checkpoint(tmp_path / "a", tmp_path / "b")
    decompress_checkpoint(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()


def test_a_configuration_stays_when_nothing_is_compressed(tmp_path: Path) -> None:
    root = tmp_path / "model"
    root.mkdir()
    (root / "config.json").write_text("{}")
    (root / "model.safetensors").write_bytes(container([("a", "U8", (5000,), random_bytes(5000, 1))]))
    compress_checkpoint(root, tmp_path / "packed")
    assert (tmp_path / "packed" / "config.json").read_text() == "{}"


@pytest.mark.parametrize("old", ["fast", "compact", "enec"])
@pytest.mark.parametrize("new", ["fast", "compact", "enec"])
def test_transcoding_gives_what_compressing_gives(model: Path, tmp_path: Path, old: Any, new: Any) -> None:
    compress_checkpoint(model, tmp_path / "old", profile=old)
    compress_checkpoint(model, tmp_path / "expected", profile=new)
    report = transcode_checkpoint(tmp_path / "old", tmp_path / "new", profile=new)
    assert (report.action, report.profile) == ("transcode", new)
    assert tree_hashes(tmp_path / "new") == tree_hashes(tmp_path / "expected")


def test_transcoding_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(container(layer(0, 1), padding=5))
    compress_checkpoint(tmp_path / "a", tmp_path / "b", profile="enec")
    transcode_checkpoint(tmp_path / "b", tmp_path / "c", profile="compact")
    compress_checkpoint(tmp_path / "a", tmp_path / "d", profile="compact")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "d").read_bytes()


def test_compressing_twice_names_transcode(model: Path, packed: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="transcode"):
        compress_checkpoint(packed, tmp_path / "twice")
    with pytest.raises(ValueError, match="transcode"):
        compress_checkpoint(packed / SHARD, tmp_path / "twice")
    (packed / "tensorwire.json").unlink()
    with pytest.raises(ValueError, match="transcode"):
        compress_checkpoint(packed, tmp_path / "twice")
    (packed / "config.json").unlink()
    with pytest.raises(ValueError, match="transcode"):
        compress_checkpoint(packed, tmp_path / "twice")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model", "packed"]


def test_what_is_not_compressed_is_not_decompressed(model: Path, tmp_path: Path) -> None:
    for source in (model, model / SHARD):
        with pytest.raises(ValueError, match=r"not .*compressed"):
            decompress_checkpoint(source, tmp_path / "back")
        with pytest.raises(ValueError, match=r"not .*compressed"):
            transcode_checkpoint(source, tmp_path / "back", profile="enec")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickles_are_refused_with_a_way_out(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / name).write_bytes(b"PK")
    for source in (root, root / name):
        with pytest.raises(ValueError, match=r"safetensors\.torch\.save_file"):
            compress_checkpoint(source, tmp_path / "packed")


def test_a_directory_without_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "README.md").write_text("nothing")
    for operation in (
        lambda: compress_checkpoint(tmp_path / "root", tmp_path / "x"),
        lambda: verify(tmp_path / "root"),
    ):
        with pytest.raises(ValueError, match=r"no \.safetensors file"):
            operation()


def test_a_shard_alone_can_be_decompressed(packed: Path, model: Path, tmp_path: Path) -> None:
    report = decompress_checkpoint(packed / SHARD, tmp_path / "shard")
    assert not report.exact
    assert diff(tmp_path / "shard", model / SHARD).equal


def test_dry_runs_write_nothing(model: Path, packed: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    report = compress_checkpoint(model, tmp_path / "x", dry_run=True)
    assert report.dry_run
    assert {f.path: f.nbytes_out for f in report.files} == {
        f.path: (packed / f.path).stat().st_size for f in report.files
    }
    assert decompress_checkpoint(packed, tmp_path / "x", dry_run=True).nbytes_out == report.nbytes_in
    transcode_checkpoint(packed, tmp_path / "x", profile="compact", dry_run=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_places_that_would_endanger_the_source(model: Path, packed: Path, tmp_path: Path) -> None:
    for dst in (model, model / "inside", tmp_path, tmp_path / "x" / ".." / "model"):
        with pytest.raises(ValueError, match="lie in each other"):
            compress_checkpoint(model, dst, force=True)
    with pytest.raises(ValueError, match="lie in each other"):
        decompress_checkpoint(packed / SHARD, packed / SHARD, force=True)


def test_name_collisions(tmp_path: Path) -> None:
    data = weights(5000, 1)
    (tmp_path / "a").write_bytes(
        container([("m.a", "BF16", (5000,), data), ("m._a_tensorwire", "BF16", (5000,), data)])
    )
    with pytest.raises(ValueError, match="_a_tensorwire"):
        compress_checkpoint(tmp_path / "a", tmp_path / "b")
    # Without its tensor such a name is one like others.
    (tmp_path / "a").write_bytes(container([("m._a_tensorwire", "BF16", (5000,), data)]))
    compress_checkpoint(tmp_path / "a", tmp_path / "b")
    decompress_checkpoint(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()


def test_empty_bytes_beside_a_lookalike_are_no_marker(tmp_path: Path) -> None:
    entries = [("m.a", "U8", (0,), b""), ("m.b", "BF16", (5000,), weights(5000, 1))]
    (tmp_path / "a").write_bytes(container(entries))
    compress_checkpoint(tmp_path / "a", tmp_path / "b")
    assert load_file(tmp_path / "b").keys() == {"m.a", "m.b"}
    decompress_checkpoint(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()


def test_verify(model: Path, packed: Path) -> None:
    report = verify(packed)
    assert (report.ok, report.kind, report.exact) == (True, "compressed", True)
    assert report.num_files == len(tree_hashes(model))
    assert report.num_tensors == 12
    assert verify(packed / SHARD).ok
    plain = verify(model)
    assert (plain.ok, plain.kind, plain.exact) == (True, "plain", False)


def test_verify_lists_every_damaged_tensor(packed: Path) -> None:
    path = packed / SHARD
    data = bytearray(path.read_bytes())
    offset = 8 + int.from_bytes(data[:8], "little")
    names = ["model.layers.0.mlp._up_proj", "model.layers.0.mlp.scales", "model.layers.0.attn._weight_tensorwire"]
    header = read_header(path)
    for name in names[1:]:
        data[offset + header[name]["data_offsets"][1] - 100] ^= 4
    path.write_bytes(data)
    (packed / "tokenizer.json").write_text("changed")
    (packed / "empty.txt").unlink()
    config = json.loads((packed / "config.json").read_bytes())
    (packed / "config.json").write_text(json.dumps(config))
    report = verify(packed)
    assert not report.ok
    found = {(problem.file, problem.tensor, problem.kind) for problem in report.problems}
    assert found == {
        (SHARD, "model.layers.0.mlp.scales", "CorruptDataError"),
        (SHARD, "model.layers.0.attn.weight", "CorruptDataError"),
        ("tokenizer.json", None, "CorruptDataError"),
        ("empty.txt", None, "FileNotFoundError"),
        ("config.json", None, "CorruptDataError"),
    }


def test_damage_leaves_nothing_behind(packed: Path, tmp_path: Path) -> None:
    path = packed / SHARD
    data = bytearray(path.read_bytes())
    data[-10_000] ^= 1
    path.write_bytes(data)
    for operation in (
        lambda dst: decompress_checkpoint(packed, dst),
        lambda dst: transcode_checkpoint(packed, dst, profile="enec"),
        lambda dst: decompress_checkpoint(packed / SHARD, dst),
    ):
        with pytest.raises(FormatError) as caught:
            operation(tmp_path / "x")
        assert caught.value.file == path
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model", "packed"]


def test_no_flipped_bit_passes_verify(packed: Path) -> None:
    generator = np.random.default_rng(1)
    for name in (SHARD, "tensorwire.json", "config.json", "tokenizer.json"):
        path = packed / name
        whole = path.read_bytes()
        for position in generator.integers(0, len(whole), 60):
            data = bytearray(whole)
            data[position] ^= 1 << int(generator.integers(8))
            path.write_bytes(data)
            assert not verify(packed).ok, (name, position)
        path.write_bytes(whole)
    assert verify(packed).ok


def test_files_that_the_manifest_does_not_know(packed: Path, model: Path, tmp_path: Path) -> None:
    (packed / "vae" / "notes.txt").write_text("later")
    assert verify(packed).ignored == ("vae/notes.txt",)
    assert decompress_checkpoint(packed, tmp_path / "back").ignored == ("vae/notes.txt",)
    assert tree_hashes(tmp_path / "back") == tree_hashes(model)


EVIL_PATHS = [
    "../x",
    "/x",
    "a/../../x",
    "a//b",
    "./a",
    "a/.",
    "",
    "..",
    "a\0b",
    "a\\b",
    "C:/x",
    "c:x",
    "x" * 5000,
    "a/",
]


@pytest.mark.parametrize("path", [*EVIL_PATHS, 5, None])
def test_hostile_paths_in_a_manifest(packed: Path, tmp_path: Path, path: Any) -> None:
    edit_manifest(packed, lambda body: body["files"][0].update(path=path))
    with pytest.raises(CorruptDataError):
        decompress_checkpoint(packed, tmp_path / "x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model", "packed"]
    assert not verify(packed).ok


def _swap(body: dict[str, Any]) -> None:
    """Give two shards each other's records."""
    a, b = (file for file in body["files"] if file["path"].startswith("model-"))
    a["header"], b["header"] = b["header"], a["header"]


def _edit(kind: str, /, **changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: next(file for file in body["files"] if file["kind"] == kind).update(changes)


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda body: body.update(format="other"), CorruptDataError),
        (lambda body: body.update(version=1), UnsupportedVersionError),
        (lambda body: body.pop("profile"), CorruptDataError),
        (lambda body: body.update(files={}), CorruptDataError),
        (lambda body: body["files"].append(body["files"][0]), CorruptDataError),
        (lambda body: body["files"].append({**body["files"][0], "path": "config.json/x"}), CorruptDataError),
        (lambda body: body["files"].append({**body["files"][0], "path": "tensorwire.json"}), CorruptDataError),
        (lambda body: body["files"].append(5), CorruptDataError),
        (_edit("copied", kind="other"), CorruptDataError),
        (_edit("copied", nbytes=-1), CorruptDataError),
        (_edit("copied", nbytes=1.5), CorruptDataError),
        (_edit("copied", sha256="0"), CorruptDataError),
        (_edit("copied", extra=1), CorruptDataError),
        (_edit("copied", sha256="0" * 64), CorruptDataError),
        (_edit("replaced", content="%%%"), CorruptDataError),
        (_edit("replaced", content=_pack(b"{}")), CorruptDataError),
        (_edit("replaced", content=_pack(b"{}")[:-8]), CorruptDataError),
        (_edit("safetensors", header=_pack(b"{}")), CorruptDataError),
        (_edit("safetensors", header=_pack(b"nothing")), CorruptDataError),
        (_edit("safetensors", header=_pack(bytes(200_000_000))), LimitExceededError),
        (_edit("safetensors", sha256="0" * 64), CorruptDataError),
        (_edit("safetensors", nbytes=5), CorruptDataError),
        (_swap, CorruptDataError),
    ],
)
def test_hostile_manifests(
    packed: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], error: type[FormatError]
) -> None:
    edit_manifest(packed, change)
    with pytest.raises(error):
        decompress_checkpoint(packed, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    assert not verify(packed).ok


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"format":1,"format":1}', b"\xff\xfe", b"[" * 200_000, b"1e9"])
def test_manifests_that_are_none(packed: Path, tmp_path: Path, content: bytes) -> None:
    (packed / "tensorwire.json").write_bytes(content)
    with pytest.raises(CorruptDataError):
        decompress_checkpoint(packed, tmp_path / "x")
    assert not verify(packed).ok


def test_a_manifest_that_is_too_large(packed: Path, tmp_path: Path) -> None:
    with (packed / "tensorwire.json").open("ab") as file:
        file.truncate(1 << 30)
    with pytest.raises(LimitExceededError):
        decompress_checkpoint(packed, tmp_path / "x")


def test_a_manifest_with_a_wrong_checksum(packed: Path, tmp_path: Path) -> None:
    edit_manifest(packed, lambda _: None, sign=False)
    with pytest.raises(CorruptDataError, match="checksum"):
        decompress_checkpoint(packed, tmp_path / "x")


@pytest.mark.parametrize(
    "index",
    [
        *(json.dumps({"weight_map": {"a": path}}) for path in EVIL_PATHS),
        '{"weight_map": {"a": "x", "a": "x"}}',
        '{"weight_map": []}',
        '{"weight_map": {"a": 1}}',
        "{}",
        "[]",
        "{",
    ],
)
def test_hostile_indexes(model: Path, tmp_path: Path, index: str) -> None:
    (model / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CorruptDataError) as caught:
        compress_checkpoint(model, tmp_path / "x")
    assert caught.value.file == model / "model.safetensors.index.json"
    assert not (tmp_path / "x").exists()


def test_an_index_of_files_that_are_not_there_stays(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    text = '{"weight_map": {"a": "model-00009-of-00009.safetensors"}}'
    (tmp_path / "model" / "model.safetensors.index.fp16.json").write_text(text)
    compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    assert (tmp_path / "packed" / "model.safetensors.index.fp16.json").read_text() == text


def test_inspect(model: Path, packed: Path) -> None:
    report = inspect(packed)
    assert (report.kind, report.restorable, len(report.files)) == ("compressed", True, 3)
    assert report.metadata == {"format": "pt"}
    tensors = {tensor.name: tensor for tensor in report.tensors}
    assert len(tensors) == 12
    tensor = tensors["model.layers.0.mlp.up_proj.weight"]
    assert (tensor.dtype, tensor.shape, tensor.file, tensor.profile) == ("BF16", (96, 192), SHARD, "fast")
    assert tensor.stored_nbytes < tensor.nbytes == 2 * 96 * 192
    values = np.frombuffer(weights(96 * 192, 0), np.uint16)
    counts = np.bincount(values >> 7 & 255, minlength=256)
    assert tensor.exponent_counts == tuple(counts.tolist())
    shares = counts[counts > 0] / counts.sum()
    assert tensor.exponent_entropy == pytest.approx(-(shares * np.log2(shares)).sum())
    assert tensor.rest_bits == pytest.approx(8, abs=0.1)
    assert tensor.exponent_bits is not None
    assert tensor.exponent_bits + tensor.rest_bits == pytest.approx(16 / tensor.ratio)
    assert sum((tensor.num_blocks or {}).values()) >= 1
    plain = tensors["model.layers.0.mlp.scales"]
    assert (plain.profile, plain.num_blocks, plain.ratio, plain.exponent_counts) == (None, None, 1.0, None)
    report = inspect(model / SHARD)
    assert (report.kind, report.restorable, report.ratio) == ("plain", False, 1.0)
    assert {t.name: t.exponent_counts for t in report.tensors} == {
        t.name: t.exponent_counts for t in inspect(packed / SHARD).tensors
    }


def test_diff_counts(tmp_path: Path) -> None:
    base = np.frombuffer(weights(70_000, 1), np.uint16).copy()
    packed = np.frombuffer(random_bytes(3000, 2), np.uint8).copy()
    changed, repacked = base.copy(), packed.copy()
    changed[[7, 500, 69_999]] ^= 0x8000
    repacked[100] ^= 0x11  # both of the two numbers in a byte
    same = ("same", "F32", (2000,), weights(2000, 9, "F32"))
    nan = ("nan", "F32", (2,), b"\xff\xff\xff\xff\x00\x00\x00\x80")
    a = [same, nan, ("w", "BF16", (700, 100), base.tobytes()), ("f4", "F4", (6000,), packed.tobytes())]
    a += [("gone", "U8", (3,), b"123"), ("shape", "U8", (2, 3), b"123456"), ("dtype", "I8", (2,), b"12")]
    b = [same, nan, ("w", "BF16", (700, 100), changed.tobytes()), ("f4", "F4", (6000,), repacked.tobytes())]
    b += [("new", "U8", (5,), b"12345"), ("shape", "U8", (3, 2), b"123456"), ("dtype", "U8", (2,), b"12")]
    (tmp_path / "a").write_bytes(container(a))
    (tmp_path / "b").write_bytes(container(b[::-1]))
    compress_checkpoint(tmp_path / "b", tmp_path / "c", profile="compact")
    for other in ("b", "c"):
        report = diff(tmp_path / "a", tmp_path / other)
        assert not report.equal
        assert report.num_equal == 2
        assert report.num_different_elements == 5
        found = {t.name: (t.status, t.numel, t.num_different, t.first_different) for t in report.tensors}
        assert found == {
            "w": ("changed", 70_000, 3, 7),
            "f4": ("changed", 6000, 2, 200),
            "gone": ("removed", 3, 3, None),
            "new": ("added", 5, 5, None),
            "shape": ("retyped", 6, 6, None),
            "dtype": ("retyped", 2, 2, None),
        }
    assert diff(tmp_path / "b", tmp_path / "c").equal


def test_diff_of_directories(model: Path, packed: Path, tmp_path: Path) -> None:
    report = diff(model, packed)
    assert (report.equal, report.num_equal, report.files) == (True, 12, ())
    write_model(tmp_path / "other", num_shards=2)
    (tmp_path / "other" / "tokenizer.json").write_text("other")
    (tmp_path / "other" / "new.txt").write_text("new")
    report = diff(packed, tmp_path / "other")
    assert (report.equal, report.tensors, report.files) == (False, (), ("new.txt", "tokenizer.json"))


def test_progress_reaches_the_end(model: Path, packed: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    record = lambda *call: calls.append(call)  # noqa: E731
    total = sum(path.stat().st_size for path in model.rglob("*") if path.is_file())
    for operation in (
        lambda: compress_checkpoint(model, tmp_path / "x", progress=record),
        lambda: decompress_checkpoint(packed, tmp_path / "y", progress=record),
        lambda: transcode_checkpoint(packed, tmp_path / "z", profile="enec", progress=record),
        lambda: verify(packed, progress=record),
    ):
        calls.clear()
        operation()
        assert calls[-1][:2] == (total, total)
        assert [call[0] for call in calls] == sorted(call[0] for call in calls)
        assert {call[2] for call in calls} == set(tree_hashes(model))


def test_a_source_that_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(container([("w", "BF16", (9_000_000,), weights(9_000_000, 1))]))

    def touch(done: int, total: int, name: str) -> None:
        if 0 < done < total:
            with path.open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"!")

    with pytest.raises(OSError, match="changed while it was read"):
        compress_checkpoint(path, tmp_path / "b", progress=touch)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_shard_of_a_saved_file_in_a_directory(tmp_path: Path) -> None:
    """A directory without a manifest is verified and inspected file by file."""
    root = tmp_path / "root"
    root.mkdir()
    save_file({"a.weight": np.zeros((64, 64), np.float32)}, root / "model.safetensors")
    assert (verify(root).ok, verify(root).kind, verify(root).exact) == (True, "compressed", False)
    assert inspect(root).tensors[0].num_blocks == {"constant": 1}
    with pytest.raises(ValueError, match=r"tensorwire\.json"):
        decompress_checkpoint(root, tmp_path / "back")
