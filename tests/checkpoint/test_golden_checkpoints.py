"""Files and directories that a writer of its own made from docs/checkpoints.md are read, or refused with the error."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference.tensorwire_reference import errors as reference_errors
from reference.tensorwire_reference.checkpoint import header_checksum
from reference.tensorwire_reference.decompress import decompress
from reference.tensorwire_reference.tensor_files import Checkpoint
from tensorwire import errors
from tensorwire.checkpoint import (
    compress_checkpoint,
    decompress_checkpoint,
    load_file,
    open_file,
    transcode_checkpoint,
    verify,
)
from tensorwire.checkpoint.directory.config_and_index import CONFIG_KEY, check_config
from tests.support.checkpoint_models import container, contents, edit_manifest, read_header, tree_hashes, weights
from tests.support.frame_surgery import Surgery
from tests.support.restored import restored

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "checkpoints" / "v1"
LISTED = json.loads((FOLDER / "manifest.json").read_text())
VALID = {Path(entry["path"]).stem: entry for entry in LISTED["valid"]}
INVALID = {Path(entry["path"]).stem: entry for entry in LISTED["invalid"]}
READ: dict[str, Callable[[Path, Path, list[Path] | None], Any]] = {
    "tensors": lambda path, dst, base: load_file(path, framework="bytes", base=base),
    "original": lambda path, dst, base: decompress_checkpoint(path, dst, base=base),
    "config": lambda path, dst, base: check_config(json.loads(path.read_bytes())[CONFIG_KEY]),
}
"""What finds the fault of an invalid one."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def bases_of(entry: dict[str, Any]) -> list[Path]:
    """Newest first."""
    named = entry["base"] if isinstance(entry["base"], list) else [entry["base"]]
    return [FOLDER / path for path in named if path is not None]


def base_of(entry: dict[str, Any]) -> list[Path] | None:
    return bases_of(entry) or None


def hashes(path: Path) -> dict[str, str]:
    """SHA-256 of the files of a directory by relative path, or of the file that it is."""
    return tree_hashes(path) if path.is_dir() else {"": sha256(path.read_bytes())}


def test_every_golden_is_listed_and_there() -> None:
    entries = [*LISTED["valid"], *LISTED["invalid"]]
    bases = {path.relative_to(FOLDER).as_posix() for entry in entries for path in bases_of(entry)}
    listed = {entry["path"] for entry in entries} | bases | {"manifest.json"}
    found = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    inside = {name for name in found if name not in listed}
    assert listed - found == {name for name in listed if (FOLDER / name).is_dir()}
    assert all(any(name.startswith(f"{directory}/") for directory in listed) for name in inside)


@pytest.mark.parametrize("name", [name for name, entry in VALID.items() if entry["tensors"] is not None])
def test_tensors_are_read(name: str) -> None:
    entry = VALID[name]
    options = {"framework": "bytes", "base": base_of(entry)}
    tensors = load_file(FOLDER / entry["path"], **options)
    assert {key: sha256(data) for key, data in tensors.items()} == {
        key: tensor["sha256"] for key, tensor in entry["tensors"].items()
    }
    with open_file(FOLDER / entry["path"], **options) as file:
        for key, tensor in entry["tensors"].items():
            part = file.get_slice(key)
            assert (part.get_dtype(), part.get_shape()) == (tensor["dtype"], tensor["shape"])
    assert verify(FOLDER / entry["path"], base=base_of(entry)).ok


@pytest.mark.parametrize("name", [name for name, entry in VALID.items() if entry["originals"]])
def test_originals_are_restored(name: str, tmp_path: Path) -> None:
    entry = VALID[name]
    report = decompress_checkpoint(FOLDER / entry["path"], tmp_path / "x", base=base_of(entry))
    assert report.exact
    assert not report.ignored
    assert not report.changed
    assert hashes(tmp_path / "x") == entry["originals"]


@pytest.mark.parametrize("name", INVALID)
def test_what_breaks_a_rule_is_refused(name: str, tmp_path: Path) -> None:
    entry = INVALID[name]
    with pytest.raises(errors.TensorwireError) as caught:
        READ[entry["read"]](FOLDER / entry["path"], tmp_path / "x", base_of(entry))
    public = next(each.__name__ for each in type(caught.value).__mro__ if hasattr(errors, each.__name__))
    assert public == entry["error"]
    assert not (tmp_path / "x").exists()
    if entry["error"] == "UnsupportedVersionError" and "required" in name:
        assert "'later features'" in str(caught.value)
        assert "a newer version of tensorwire wrote this: upgrade" in str(caught.value)


@pytest.mark.parametrize("name", ["file-required", "file-frames-required", "manifest-required"])
def test_no_command_takes_what_a_later_version_wrote(name: str, tmp_path: Path) -> None:
    path = FOLDER / INVALID[name]["path"]
    for command in (
        lambda: decompress_checkpoint(path, tmp_path / "x"),
        lambda: transcode_checkpoint(path, tmp_path / "x", profile="enec"),
    ):
        with pytest.raises(errors.UnsupportedVersionError, match="later features"):
            command()
    (problem,) = verify(path).problems
    assert problem.kind == "UnsupportedVersionError"


@pytest.mark.parametrize("name", ["file-required", "manifest-required"])
def test_nothing_replaces_what_a_later_version_wrote(name: str, tmp_path: Path) -> None:
    """It may be the only copy."""
    path, source = FOLDER / INVALID[name]["path"], FOLDER / VALID["alone"]["path"]
    place = tmp_path / "x.safetensors"
    if path.is_dir():
        shutil.copytree(path, place)
        source = FOLDER / VALID["directory"]["path"]
    else:
        shutil.copy(path, place)
    with pytest.raises(FileExistsError):
        transcode_checkpoint(source, place, profile="enec", force=True)
    assert hashes(place) == hashes(path)


@pytest.mark.parametrize(("name", "plain"), [("optional", "alone"), ("directory-optional", "directory")])
def test_what_a_reader_skips_is_not_kept(name: str, plain: str, tmp_path: Path) -> None:
    """A result says what its own writer knows, and is that of the original."""
    for source in (name, plain):
        transcode_checkpoint(FOLDER / VALID[source]["path"], tmp_path / source, profile="compact")
    assert b"skip me" in b"".join(contents(FOLDER / VALID["directory-optional"]["path"]).values())
    assert hashes(tmp_path / name) == hashes(tmp_path / plain)


@pytest.mark.parametrize("change", [lambda text: text.replace(b"skip me too", b"skip me two"), None])
def test_checksums_cover_what_a_reader_skips(change: Any, tmp_path: Path) -> None:
    data = (FOLDER / VALID["optional"]["path"]).read_bytes()
    path = tmp_path / "optional.safetensors"
    path.write_bytes(data if change is None else change(data))
    assert verify(path).ok is (change is None)


def test_the_checksum_of_a_manifest_covers_what_a_reader_skips(packed: Path, tmp_path: Path) -> None:
    edit_manifest(packed, lambda body: body["files"][0].update(later=1))
    decompress_checkpoint(packed, tmp_path / "x")
    path = packed / "tensorwire.json"
    path.write_bytes(path.read_bytes().replace(b'"later": 1', b'"later": 2'))
    with pytest.raises(errors.CorruptDataError, match="checksum"):
        decompress_checkpoint(packed, tmp_path / "y")


def test_frameworks_cannot_hold_a_marker_without_a_payload() -> None:
    with open_file(FOLDER / VALID["names"]["path"]) as file:
        assert file.get_tensor("payload_alone._w_tensorwire").tobytes() == b"\x93TWF"
        with pytest.raises(errors.UnsupportedTensorError, match="F6_E2M3"):
            file.get_tensor("marker_alone.w")


# The reference -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VALID)
def test_the_reference_reads_its_goldens(name: str) -> None:
    entry = VALID[name]
    path = FOLDER / entry["path"]
    bases = [contents(base) if base.is_dir() else {"": base.read_bytes()} for base in bases_of(entry)]
    if path.is_file():
        behind: list[Checkpoint] = []
        for base in reversed(bases):
            behind.insert(0, Checkpoint(base, tuple(behind)))
        file = Checkpoint({"": path.read_bytes()}, behind).open("")
        found = {name: sha256(file.read(name).data) for name in file.names}
        assert found == {key: tensor["sha256"] for key, tensor in entry["tensors"].items()}
    if entry["originals"]:
        originals = restored(contents(path) if path.is_dir() else {"": path.read_bytes()}, *bases)
        assert {name: sha256(data) for name, data in originals.items()} == entry["originals"]


# The others are faults of what only a reader of tensors by their names takes.
@pytest.mark.parametrize("name", [name for name in INVALID if not name.startswith(("index-", "config-"))])
def test_the_reference_refuses_what_breaks_a_rule(name: str, tmp_path: Path) -> None:
    with pytest.raises(getattr(reference_errors, INVALID[name]["error"])):
        decompress(FOLDER / INVALID[name]["path"], tmp_path / "x", bases_of(INVALID[name]))
    assert not any(tmp_path.iterdir())


def test_the_reference_reads_files_of_the_package_that_share_tensors(tmp_path: Path) -> None:
    originals = {"a/model.safetensors": {"w": 1}, "b/other.safetensors": {"v": 1}, "b/third.safetensors": {"v": 2}}
    for path, seeds in originals.items():
        (tmp_path / "model" / path).parent.mkdir(parents=True, exist_ok=True)
        tensors = [(name, "BF16", (9000,), weights(9000, seed)) for name, seed in seeds.items()]
        (tmp_path / "model" / path).write_bytes(container(tensors))
    compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    assert b"tensorwire.beside:v" in (tmp_path / "packed/b/other.safetensors").read_bytes()
    assert restored(contents(tmp_path / "packed")) == contents(tmp_path / "model")


@pytest.mark.parametrize("profile", ["fast", "compact", "resident", "enec"])
def test_the_reference_reads_what_the_package_writes(model: Path, tmp_path: Path, profile: Any) -> None:
    compress_checkpoint(model, tmp_path / "packed", profile=profile)
    assert restored(contents(tmp_path / "packed")) == contents(model)


def test_the_reference_reads_deltas_of_the_package(tmp_path: Path) -> None:
    old = FOLDER / "bases/old.safetensors"
    data = bytearray(old.read_bytes())
    data[-5:] = np.random.default_rng(1).bytes(5)
    (tmp_path / "new").write_bytes(data)
    compress_checkpoint(tmp_path / "new", tmp_path / "delta", base=old)
    assert restored({"": (tmp_path / "delta").read_bytes()}, {"": old.read_bytes()}) == {"": bytes(data)}


LABELS = {"w": ("BF16", (90, 100)), "plain": ("F16", (8,)), "empty": ("F16", (0, 4))}


def relabel(path: Path, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Say what a tensor is, in its frame or in the header, with checksums that are right again; its bytes stay."""
    header, blob = read_header(path), path.read_bytes()
    data = bytearray(blob[8 + int.from_bytes(blob[:8], "little") :])
    if name == "w":
        place = slice(*header["_w_tensorwire"]["data_offsets"])
        frame = Surgery(data[place])
        frame.set_shape(*shape)
        data[place] = frame.close()
    else:
        header[name] |= {"dtype": dtype, "shape": shape}
    texts = header.pop("__metadata__")
    labels = [(key, entry["dtype"], tuple(entry["shape"])) for key, entry in header.items()]
    texts["tensorwire.checksum"] = header_checksum(texts, labels)
    text = json.dumps({"__metadata__": texts, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("in_directory", [False, True])
@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [("plain", "BF16", (8,)), ("plain", "F16", (2, 4)), ("empty", "BF16", (0, 4)), ("empty", "F16", (0, 5)),
     ("w", "BF16", (100, 90))],
)  # fmt: skip
def test_both_readers_restore_no_tensor_that_is_stored_as_another_one(
    name: str, dtype: str, shape: tuple[int, ...], in_directory: bool, tmp_path: Path
) -> None:
    """What `load_file` gives is what the original has."""
    data = {"w": weights(9000, 1), "plain": bytes(range(16)), "empty": b""}
    model, packed = tmp_path / "model", tmp_path / "packed"
    model.mkdir()
    (model / "m.safetensors").write_bytes(container([(each, *LABELS[each], data[each]) for each in LABELS]))
    compress_checkpoint(model if in_directory else model / "m.safetensors", packed)
    file = packed / "m.safetensors" if in_directory else packed
    relabel(file, name, *LABELS[name])
    assert restored(contents(packed) if in_directory else {"": packed.read_bytes()}).popitem()[1]
    decompress_checkpoint(packed, tmp_path / "out")
    relabel(file, name, dtype, shape)
    assert not verify(packed).ok
    with pytest.raises(errors.CorruptDataError, match=f"expected .* bytes, got {dtype}.*{name}"):
        decompress_checkpoint(packed, tmp_path / "x")
    with pytest.raises(reference_errors.CorruptDataError, match=f"{name} is another one than the original has there"):
        decompress(packed, tmp_path / "x")
    assert not (tmp_path / "x").exists()
