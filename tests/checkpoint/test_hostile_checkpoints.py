"""Checkpoints that are damaged, hostile, or not for us: refused with a reason, and no harm done."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.checkpoint import (
    compress_checkpoint,
    decompress_checkpoint,
    transcode_checkpoint,
    verify,
)
from tensorwire.checkpoint.directory import manifest as manifest_module
from tensorwire.checkpoint.directory.config_and_index import Shard, new_index, parse_index
from tensorwire.checkpoint.directory.manifest import Manifest, ManifestFile, parse_manifest
from tensorwire.checkpoint.directory.paths import MANIFEST_NAME, is_plain_relative
from tensorwire.errors import CorruptDataError, FormatError, LimitExceededError, UnsupportedVersionError
from tensorwire.files.json_object import load
from tests.support.checkpoint_models import SHARD, container, edit_manifest, weights
from tests.support.drawn import drawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


@pytest.mark.parametrize("flips", [12, pytest.param(30, marks=pytest.mark.slow)])
def test_no_flipped_bit_passes_verify(packed: Path, flips: int) -> None:
    generator = np.random.default_rng(1)
    for name in (SHARD, "tensorwire.json", "config.json", "tokenizer.json"):
        path = packed / name
        whole = path.read_bytes()
        for position in generator.integers(0, len(whole), flips):
            data = bytearray(whole)
            data[position] ^= 1 << int(generator.integers(8))
            path.write_bytes(data)
            assert not verify(packed, strict=True).ok, (name, position)
        path.write_bytes(whole)
    assert verify(packed).ok


DOTTED_PATHS = ["./a", "a//b", "a/."]
EVIL_PATHS = [
    *DOTTED_PATHS,
    "../x",
    "/x",
    "a/../../x",
    "",
    "..",
    "a\0b",
    "a\\b",
    "C:/x",
    "c:x",
    "x" * 5000,
    "a/",
]


@pytest.mark.parametrize("path", [*EVIL_PATHS, "\ud800", 5, None])
def test_hostile_paths_in_a_manifest(packed: Path, tmp_path: Path, path: Any) -> None:
    edit_manifest(packed, lambda body: body["files"][0].update(path=path))
    with pytest.raises(CorruptDataError):
        decompress_checkpoint(packed, tmp_path / "x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model", "packed"]
    assert not verify(packed).ok


@pytest.mark.parametrize("kind", ["copied", "replaced"])
def test_a_manifest_that_claims_the_files_of_a_user(model: Path, tmp_path: Path, kind: str) -> None:
    """It came from somewhere; the models in the same directory are his."""
    known = {"content": _pack(b""), "stored_sha256": "0" * 64} if kind == "replaced" else {}
    for name, data in (("model.safetensors", container([("a", "U8", (4,), b"mine")])), ("model.pt", b"mine")):
        claimed = tmp_path / f"{kind}-{name}"
        claimed.mkdir()
        (claimed / name).write_bytes(data)
        entry = ManifestFile(name, kind, 1, "0" * 64, **known)
        (claimed / MANIFEST_NAME).write_bytes(Manifest("fast", (entry,)).dump())
        with pytest.raises(FileExistsError, match="never replaced"):
            compress_checkpoint(model, claimed, force=True)
        assert (claimed / name).read_bytes() == data


def _swap(body: dict[str, Any]) -> None:
    """Give two shards each other's records."""
    a, b = (file for file in body["files"] if file["path"].startswith("model-"))
    a["header"], b["header"] = b["header"], a["header"]


def _edit(kind: str, /, **changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: next(file for file in body["files"] if file["kind"] == kind).update(changes)


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


MEMBERS: list[dict[str, Any]] = [
    {"format": "other"},
    {"files": {}},
    {"base": None},
    *(
        {"directories": each}
        for each in (
            *(5, [5], ["logs"], ["../x/"], ["/"], ["a/"] * 2, ["vae/"], ["config.json/"], ["a/", "a/b/"]),
            *(["tensorwire.json/"], ["a\ud800/"]),
        )
    ),
    *(
        {"excluded": each}
        for each in (5, [5], ["../x"], ["/x"], ["a", "a"], [""], ["/"], ["a", "a/b"], ["a", "a/"], ["a\ud800"])
    ),
]
IN_MANIFEST: list[Callable[[dict[str, Any]], object]] = [
    *((lambda body, changes=changes: body.update(changes)) for changes in MEMBERS),
    lambda body: body.pop("profile"),
    lambda body: body["files"].append(body["files"][0]),
    lambda body: body["files"].append({**body["files"][0], "path": "config.json/x"}),
    lambda body: body["files"].append({**body["files"][0], "path": "tensorwire.json"}),
    lambda body: body["files"].append(5),
    _edit("copied", kind="other"),
    *(_edit("copied", nbytes=each) for each in (-1, 1.5)),
    *(_edit("copied", sha256=each) for each in ("0", "A" * 64)),
    *(_edit("replaced", stored_sha256=each) for each in ("../x", "")),
    *(_edit("copied", base_sha256=each) for each in ("../x", "")),
]
IN_FILES: list[tuple[Callable[[dict[str, Any]], object], type[FormatError], str]] = [
    (_edit("copied", sha256="0" * 64), CorruptDataError, "assets/deep/image.png"),
    *((_edit("replaced", content=each), CorruptDataError, "config.json")
      for each in ("%%%", _pack(b"{}"), _pack(b"{}")[:-8])),
    *((_edit("safetensors", header=_pack(each)), CorruptDataError, SHARD) for each in (b"{}", b"nothing")),
    (lambda body: _edit("safetensors", header=_pack(bytes(200_000_000)))(body), LimitExceededError, SHARD),
    (_edit("safetensors", sha256="0" * 64), CorruptDataError, SHARD),
    (_edit("safetensors", nbytes=5), CorruptDataError, SHARD),
    (_swap, CorruptDataError, SHARD),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "blamed"),
    [
        *((change, CorruptDataError, MANIFEST_NAME) for change in IN_MANIFEST),
        *((lambda body, v=v: body.update(version=v), UnsupportedVersionError, MANIFEST_NAME) for v in (0, 2)),
        *IN_FILES,
    ],
)
def test_hostile_manifests(
    packed: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], error: type[FormatError], blamed: str
) -> None:
    edit_manifest(packed, change)
    with pytest.raises(error) as caught:
        decompress_checkpoint(packed, tmp_path / "x", strict=True)
    assert not (tmp_path / "x").exists()
    problem = verify(packed, strict=True).problems[0]
    assert (problem.kind, problem.file) == (error.__name__, blamed)
    assert blamed in problem.message
    if error is UnsupportedVersionError:
        assert "if an older one did, compress the original again" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"profile": "a later one"}, {"directories": []}, {"excluded": ["config.json", "a/tensorwire.json", "b/"]}],
)
def test_what_a_manifest_may_say_besides(packed: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    edit_manifest(packed, lambda body: body.update(changes))
    assert verify(packed, strict=True).ok
    assert decompress_checkpoint(packed, tmp_path / "x", strict=True).exact


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


def test_a_manifest_that_would_be_too_large(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be decompressed again is not made, and no file more is coded once that is known."""
    compress_checkpoint(model, tmp_path / "x")
    limit = (tmp_path / "x" / MANIFEST_NAME).stat().st_size
    monkeypatch.setattr(manifest_module, "MAX_JSON_NBYTES", limit)
    compress_checkpoint(model, tmp_path / "y")
    assert verify(tmp_path / "y").ok
    seen: list[str] = []
    for smaller in (limit - 1, 100):
        seen.clear()
        monkeypatch.setattr(manifest_module, "MAX_JSON_NBYTES", smaller)
        with pytest.raises(LimitExceededError, match=f"at most {smaller} bytes") as caught:
            compress_checkpoint(model, tmp_path / "z", progress=lambda done, total, path: seen.append(path))
        assert str(caught.value.file).startswith(str(model))
        assert not (tmp_path / "z").exists()
    assert set(seen) == {"assets/deep/image.png"}


def test_a_manifest_with_a_wrong_checksum(packed: Path, tmp_path: Path) -> None:
    edit_manifest(packed, lambda _: None, sign=False)
    with pytest.raises(CorruptDataError, match="checksum"):
        decompress_checkpoint(packed, tmp_path / "x")


@pytest.mark.parametrize(
    "index",
    [
        *(json.dumps({"weight_map": {"a": path}}) for path in EVIL_PATHS if path not in DOTTED_PATHS),
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


def test_a_directory_without_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "README.md").write_text("nothing")
    for operation in (
        lambda: compress_checkpoint(tmp_path / "root", tmp_path / "x"),
        lambda: verify(tmp_path / "root"),
    ):
        with pytest.raises(ValueError, match=r"no \.safetensors file"):
            operation()


def test_links_to_directories_are_refused(model: Path, tmp_path: Path) -> None:
    (model / "link").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ValueError, match="link to a directory"):
        compress_checkpoint(model, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_links_to_directories_in_a_compressed_directory_are_refused(packed: Path, tmp_path: Path) -> None:
    (packed / "link").symlink_to(tmp_path, target_is_directory=True)
    for operation in (
        lambda: decompress_checkpoint(packed, tmp_path / "x"),
        lambda: transcode_checkpoint(packed, tmp_path / "x", profile="enec"),
        lambda: verify(packed),
    ):
        with pytest.raises(ValueError, match=r"link. is a link to a directory"):
            operation()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model", "packed"]


@pytest.mark.parametrize("name", [SHARD, "tokenizer.json"])
def test_a_directory_in_the_place_of_a_listed_file(packed: Path, tmp_path: Path, name: str) -> None:
    (packed / name).unlink()
    (packed / name).mkdir()
    for operation in (
        lambda: decompress_checkpoint(packed, tmp_path / "x"),
        lambda: transcode_checkpoint(packed, tmp_path / "x", profile="enec"),
    ):
        with pytest.raises(IsADirectoryError) as caught:
            operation()
        assert caught.value.filename == str(packed / name)
        assert not (tmp_path / "x").exists()
    problem = verify(packed).problems[0]
    assert (problem.kind, problem.file) == ("IsADirectoryError", name)


@pytest.mark.parametrize(("make", "found"), [(os.mkdir, "a directory"), (os.mkfifo, "a pipe, a socket or a device")])
def test_what_stands_in_the_place_of_a_manifest(
    packed: Path, tmp_path: Path, make: Callable[[Path], None], found: str
) -> None:
    (packed / MANIFEST_NAME).unlink()
    make(packed / MANIFEST_NAME)
    for operation in (
        lambda: decompress_checkpoint(packed, tmp_path / "x"),
        lambda: transcode_checkpoint(packed, tmp_path / "x", profile="compact"),
    ):
        with pytest.raises(CorruptDataError, match=f"expected a file, got {found}.*put the manifest in its place"):
            operation()
    with contextlib.suppress(ValueError):  # of a pipe, since a directory may hold none
        assert verify(packed).problems[0].file == MANIFEST_NAME
    (packed / "folder").mkdir()
    (packed / SHARD).rename(packed / "folder" / SHARD)
    assert verify(packed / "folder").ok  # a directory below is looked at without it


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


names = st.text(max_size=8) | st.sampled_from(["../x", "/x", "a/../x", "a\\b", "c:x", "a", "a/b", MANIFEST_NAME])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | names,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(names, values, max_size=4),
    max_leaves=8,
)


def _sign(body: dict[str, Any]) -> bytes:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return json.dumps({**body, "checksum": hashlib.sha256(canonical.encode()).hexdigest()}).encode()


@drawn(40, 100)
@given(st.data())
def test_any_manifest_is_read_or_refused(data: st.DataObject) -> None:
    """A valid one with members replaced, added and removed, and its checksum made right again."""
    files = (
        ManifestFile("a.safetensors", "safetensors", 5, "0" * 64, header="AA=="),
        ManifestFile("config.json", "replaced", 5, "1" * 64, content="AA==", stored_sha256="2" * 64),
        ManifestFile("b/c", "copied", 0, "3" * 64),
    )
    body = json.loads(Manifest("fast", files).dump())
    del body["checksum"]
    for _ in range(data.draw(st.integers(0, 3))):
        listed = body.get("files") if isinstance(body.get("files"), list) else []
        target = data.draw(st.sampled_from([body, *(file for file in listed if isinstance(file, dict))]))
        key = data.draw(st.sampled_from(sorted(target)) | names if target else names)
        if data.draw(st.booleans()):
            target[key] = data.draw(json_values)
        else:
            target.pop(key, None)
    try:
        manifest = parse_manifest(_sign(body))
    except FormatError:
        return
    for file, entry in zip(manifest.files, body["files"], strict=True):
        assert file.as_json().items() <= entry.items()
    assert all(is_plain_relative(file.path) for file in manifest.files)


@drawn(40, 100)
@given(
    st.binary(max_size=40)
    | st.builds(lambda value: json.dumps(value).encode(), json_values)
    | st.builds(
        lambda weight_map, rest: json.dumps({**rest, "weight_map": weight_map}).encode(),
        st.dictionaries(names, names, max_size=4) | json_values,
        st.dictionaries(names | st.just("metadata"), json_values, max_size=3),
    ),
    st.dictionaries(
        names, st.builds(Shard, st.just(frozenset()), st.frozensets(names, max_size=3), st.integers(0)), max_size=3
    ),
)
def test_any_index_is_read_or_refused(data: bytes, shards: dict[str, Shard]) -> None:
    try:
        found = parse_index(data)
        index = new_index(found, shards)
    except FormatError:
        return
    weight_map = json.loads(data)["weight_map"]
    assert all(is_plain_relative(path) for path in found.files.values())
    assert found.files.keys() == weight_map.keys()
    if index is not None:
        assert weight_map.items() <= load(index)["weight_map"].items()


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_deep_json_is_refused(stride: int) -> None:
    """At about a thousand levels Python's own limit ends what reads it."""
    for depth in (900, *range(930, 1001, stride), 100_000):
        nested = b'"x":' + b"[" * depth + b"]" * depth
        with contextlib.suppress(FormatError):
            parse_manifest(b'{"format":"tensorwire-checkpoint","version":1,%b}' % nested)
        with contextlib.suppress(FormatError):
            index = parse_index(b'{"weight_map":{"a":"b"},%b}' % nested)
            new_index(index, {"b": Shard(frozenset({"a"}), frozenset({"a"}), 0)})


DEEP: list[Any] = [[[1] * 100] * 10]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"format": DEEP}, "got a value of type list"),
        ({"format": "\0" * 10_000}, r"\(10000 characters\)"),
        ({"format": manifest_module.FORMAT, "version": 10**1000}, "got a value of type int"),
        ({"format": manifest_module.FORMAT, "version": {"a": DEEP}}, "got a value of type dict"),
    ],
)
def test_a_message_shows_no_more_than_it_has_room_for(body: dict[str, Any], text: str) -> None:
    """What is nested is not made a text of first: it may be longer than memory."""
    with pytest.raises(FormatError, match=text) as caught:
        parse_manifest(json.dumps(body).encode())
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("kind", [DEEP, {"a": DEEP}, 7, None])
def test_a_kind_that_is_none(kind: Any) -> None:
    with pytest.raises(CorruptDataError, match="expected files of the kinds"):
        manifest_module.parse_file({"kind": kind})


def test_an_index_that_names_no_files() -> None:
    with pytest.raises(CorruptDataError, match="got a value of type list"):
        parse_index(json.dumps({"weight_map": {"a": DEEP}}).encode())
