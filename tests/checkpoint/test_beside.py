"""Tensors that several files of a directory have, which the compressed directory holds once."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire.checkpoint import (
    compress_checkpoint,
    decompress_checkpoint,
    diff,
    estimate_ratio,
    inspect,
    load_file,
    open_file,
    save_file,
    transcode_checkpoint,
    verify,
)
from tensorwire.errors import BaseMismatchError, CorruptDataError, FormatError, LimitExceededError
from tensorwire.files import beside
from tensorwire.files.reader import StoredFile
from tests.support.checkpoint_models import contents
from tests.support.directories import NUMEL, forge, tensors, write, write_twice

if TYPE_CHECKING:
    from pathlib import Path

MODEL, OTHER = "model.safetensors", "other.safetensors"
LARGE = {f"transformer.layer.{index}" for index in range(3)}


@pytest.fixture
def twice(tmp_path: Path) -> Path:
    write_twice(tmp_path / "twice")
    return tmp_path / "twice"


@pytest.fixture
def small(twice: Path, tmp_path: Path) -> Path:
    compress_checkpoint(twice, tmp_path / "small")
    return tmp_path / "small"


def relative(path: Path) -> set[str]:
    with StoredFile(path) as stored:
        return {tensor.name for tensor in stored.tensors.values() if stored.is_relative(tensor)}


@pytest.mark.parametrize("profile", ["fast", "compact", "resident", "enec"])
def test_what_two_files_have_is_stored_once(twice: Path, tmp_path: Path, profile: Any) -> None:
    """The file that model libraries load needs no other one; small tensors are not worth it."""
    report = compress_checkpoint(twice, tmp_path / "small", profile=profile)
    assert {file.path: file.num_relative for file in report.files if file.num_tensors} == {MODEL: 0, OTHER: 3}
    assert f"relative to other files of the directory, without which they cannot be read: {OTHER}" in report.notices
    assert relative(tmp_path / "small" / OTHER) == LARGE
    assert (tmp_path / "small" / OTHER).stat().st_size < 5000
    found = verify(tmp_path / "small")
    assert (found.ok, found.exact, found.num_relative, found.num_unchecked) == (True, True, 3, 0)
    assert decompress_checkpoint(tmp_path / "small", tmp_path / "back").exact
    assert contents(tmp_path / "back") == contents(twice)


def test_readers_find_the_other_file_by_themselves(twice: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_file(twice / OTHER)
    found = load_file(small / OTHER)
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }
    with open_file(small / OTHER) as reader:
        rows = reader.get_slice("transformer.layer.1")[100:200]
        assert rows.tobytes() == expected["transformer.layer.1"][100:200].tobytes()
    assert (
        load_file(small / OTHER, verify=False)["transformer.layer.0"].tobytes()
        == expected["transformer.layer.0"].tobytes()
    )
    assert not diff(small, twice).tensors
    described = {tensor.name: tensor for tensor in inspect(small).tensors}["transformer.layer.2"]
    assert (described.base_file, described.base_name, described.base_found) == (MODEL, "layer.2", True)
    assert described.exponent_counts is not None
    monkeypatch.chdir(small)
    assert load_file(OTHER).keys() == expected.keys()


def test_transcode_gives_what_compressing_gives(twice: Path, small: Path, tmp_path: Path) -> None:
    transcode_checkpoint(small, tmp_path / "new", profile="compact")
    compress_checkpoint(twice, tmp_path / "expected", profile="compact")
    assert contents(tmp_path / "new") == contents(tmp_path / "expected")


def test_containers_share_their_tensors(tmp_path: Path) -> None:
    """A storage of a torch file has the bytes of a tensor, whatever its views are."""
    torch = pytest.importorskip("torch")
    content = {name: torch.frombuffer(bytearray(data), dtype=torch.bfloat16) for name, data in tensors(3).items()}
    write(tmp_path / "both" / "model-00001-of-00001.safetensors", tensors(3))
    torch.save({"state": content, "rows": content["layer.0"].view(60, 100)}, tmp_path / "both" / "model.bin")
    report = compress_checkpoint(tmp_path / "both", tmp_path / "small")
    assert [file.num_relative for file in report.files if file.kind == "torch"] == [3]
    with StoredFile(tmp_path / "small" / "model.bin") as stored:
        assert stored.header.metadata["tensorwire.required"] == "torch beside"
    assert load_file(tmp_path / "small" / "model.bin").keys() == {f"data/{index}" for index in range(4)}
    decompress_checkpoint(tmp_path / "small", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "both")


def test_the_nearest_file_is_taken(tmp_path: Path) -> None:
    """Two models have a content: each directory's own is taken."""
    for folder in ("a", "b"):
        write_twice(tmp_path / "run" / folder)
    compress_checkpoint(tmp_path / "run", tmp_path / "small")
    for folder in ("a", "b"):
        assert not relative(tmp_path / "small" / folder / MODEL)
        files = {tensor.base_file for tensor in inspect(tmp_path / "small" / folder).tensors} - {None}
        assert files == {f"{folder}/{MODEL}"}


def test_what_takes_nothing_is_stored_again(tmp_path: Path) -> None:
    """A constant needs no other file."""
    content = {"zeros": bytes(2 * NUMEL)}
    write(tmp_path / "both" / MODEL, content)
    write(tmp_path / "both" / OTHER, content)
    assert "second time" not in str(compress_checkpoint(tmp_path / "both", tmp_path / "small").notices)
    assert b"beside" not in (tmp_path / "small" / OTHER).read_bytes()
    assert b'"required"' not in (tmp_path / "small" / "tensorwire.json").read_bytes()


def test_with_a_base_or_without_the_other_file_nothing_is(twice: Path, small: Path, tmp_path: Path) -> None:
    write_twice(tmp_path / "new", seed=50)
    compress_checkpoint(tmp_path / "new", tmp_path / "delta", base=small)
    assert relative(tmp_path / "delta" / MODEL)
    assert b"beside" not in (tmp_path / "delta" / OTHER).read_bytes()
    decompress_checkpoint(tmp_path / "delta", tmp_path / "back", base=small)
    assert contents(tmp_path / "back") == contents(tmp_path / "new")
    compress_checkpoint(twice, tmp_path / "alone", exclude=[MODEL])
    assert not relative(tmp_path / "alone" / OTHER)


def test_more_than_sixteen_of_one_tensor_are_stored_again(tmp_path: Path) -> None:
    data = tensors(0)["layer.0"]
    write(tmp_path / "many" / MODEL, {"a": data})
    write(tmp_path / "many" / OTHER, {f"tensor.{index}": data for index in range(20)})
    compress_checkpoint(tmp_path / "many", tmp_path / "small")
    assert len(relative(tmp_path / "small" / OTHER)) == 16
    decompress_checkpoint(tmp_path / "small", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "many")


def test_an_estimate_counts_a_content_once(twice: Path) -> None:
    once = estimate_ratio(twice, exclude=[OTHER]).nbytes_out
    assert estimate_ratio(twice).nbytes_out < 1.2 * once


def test_parts_in_any_order_give_the_same(twice: Path, small: Path, tmp_path: Path) -> None:
    for name in (OTHER, MODEL):
        compress_checkpoint(twice, tmp_path / "parts", files=[name])
    report = compress_checkpoint(twice, tmp_path / "parts")
    assert [file.resumed for file in report.files] == [True, True, False]
    assert contents(tmp_path / "parts") == contents(small)


def test_a_part_whose_other_file_has_changed_since_is_made_anew(twice: Path, tmp_path: Path) -> None:
    compress_checkpoint(twice, tmp_path / "parts", files=[OTHER])
    write(twice / MODEL, tensors(90))
    report = compress_checkpoint(twice, tmp_path / "parts")
    assert not any(file.resumed or file.num_relative for file in report.files)
    assert verify(tmp_path / "parts").exact


@pytest.mark.parametrize("changed", [False, True])
def test_a_run_goes_on(twice: Path, small: Path, tmp_path: Path, changed: bool) -> None:
    """Both files are finished and the third is not; then the one that others need is as it was, or another one."""
    write(twice / "third.safetensors", tensors(70))

    def stop(done: int, total: int, path: str) -> None:
        if path == "third.safetensors":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress_checkpoint(twice, tmp_path / "x", progress=stop)
    if changed:
        write(twice / MODEL, tensors(90))
    report = compress_checkpoint(twice, tmp_path / "x")
    assert {file.path: file.resumed for file in report.files if file.num_tensors} == {
        MODEL: not changed,
        OTHER: not changed,
        "third.safetensors": False,
    }
    assert verify(tmp_path / "x").exact
    assert bool(relative(tmp_path / "x" / OTHER)) is not changed


def test_a_missing_or_changed_file_is_named(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "whole")
    (small / MODEL).unlink()
    with pytest.raises(BaseMismatchError, match=f"'layer.2' in '{MODEL}' .* there is no file .*fetch that file"):
        load_file(small / OTHER)
    with pytest.raises(FileNotFoundError, match=MODEL):
        decompress_checkpoint(small, tmp_path / "back")
    assert {problem.file for problem in verify(small).problems} == {MODEL}
    inspected = inspect(small / OTHER)
    assert [tensor.base_found for tensor in inspected.tensors if tensor.base_file] == [False] * 3
    write(small / MODEL, tensors(90))
    with pytest.raises(BaseMismatchError, match=r"has [0-9a-f]{32}.*holds no copy of what 'model.safetensors' has"):
        load_file(small / OTHER)
    write(small / MODEL, {"layer.2": bytes(100)})
    with pytest.raises(BaseMismatchError, match="has 100 bytes"):
        load_file(small / OTHER)
    save_file({"else": np.zeros(4)}, small / MODEL)
    with pytest.raises(BaseMismatchError, match="has no tensor of this name"):
        load_file(small / OTHER)


def test_a_file_alone_says_what_else_to_fetch(small: Path, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    for name in (OTHER, "renamed.safetensors"):
        shutil.copy(small / OTHER, tmp_path / "alone" / name)
        expected = f"stands in no directory with a tensorwire.json for it .*'{MODEL}' has: fetch that file and tensor"
        with pytest.raises(BaseMismatchError, match=expected):
            load_file(tmp_path / "alone" / name)
    for name in (MODEL, "tensorwire.json"):
        shutil.copy(small / name, tmp_path / "alone" / name)
    assert len(load_file(tmp_path / "alone" / OTHER)) == 4


def test_the_cache_of_a_hub_whose_files_are_links(small: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(small.iterdir()):
        shutil.copy(path, blobs / f"{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    assert len(load_file(snapshot / OTHER)) == 4
    (tmp_path / "link").symlink_to(small)
    assert len(load_file(tmp_path / "link" / OTHER)) == 4
    (tmp_path / "file.safetensors").symlink_to(small / OTHER)
    assert len(load_file(tmp_path / "file.safetensors")) == 4


@pytest.mark.parametrize(
    "place", ["../outside.safetensors", "/outside.safetensors", "a/../b", "", "tensorwire.json", "a\\b"]
)
def test_a_path_out_of_the_directory_is_refused(small: Path, tmp_path: Path, place: str) -> None:
    shutil.copy(small / MODEL, tmp_path / "outside.safetensors")
    forge(small / OTHER, **{"beside:transformer.layer.0": place})
    with pytest.raises(CorruptDataError, match="expected the path of a file of the directory"):
        load_file(small / OTHER)


def test_a_link_out_of_the_directory_is_refused(small: Path, tmp_path: Path) -> None:
    (small / MODEL).rename(tmp_path / MODEL)
    (small / MODEL).symlink_to(tmp_path / MODEL)
    with pytest.raises(CorruptDataError, match="link that leads out of it"):
        load_file(small / OTHER)


def test_files_that_the_manifest_does_not_list_are_none(small: Path) -> None:
    shutil.copy(small / MODEL, small / "secret.safetensors")
    forge(small / OTHER, **{"beside:transformer.layer.0": "secret.safetensors"})
    with pytest.raises(BaseMismatchError, match=r"does not list 'secret.safetensors'"):
        load_file(small / OTHER, verify=False)
    shutil.copy(small / OTHER, small / "foreign.safetensors")
    forge(small / "foreign.safetensors", path="foreign.safetensors")
    with pytest.raises(BaseMismatchError, match=r"does not list 'foreign.safetensors'"):
        load_file(small / "foreign.safetensors")


def test_a_file_that_says_it_lies_deeper_finds_nothing_above(small: Path, tmp_path: Path) -> None:
    shutil.copy(small / "tensorwire.json", tmp_path / "tensorwire.json")
    forge(small / OTHER, path=f"other/{OTHER}")
    with pytest.raises(BaseMismatchError, match="stands in no directory"):
        load_file(small / OTHER)


def test_a_circle_ends(small: Path) -> None:
    """Files that say so of each other, or of themselves."""
    shutil.copy(small / OTHER, small / MODEL)
    for tensor in LARGE:
        forge(small / OTHER, **{f"base:{tensor}": tensor})
        forge(small / MODEL, **{f"base:{tensor}": tensor, f"beside:{tensor}": OTHER})
    for verified in (True, False):
        with pytest.raises(CorruptDataError, match=r"got a circle of 'other.safetensors', 'model.safetensors'"):
            load_file(small / OTHER, verify=verified)
    forge(small / OTHER, **{f"beside:{tensor}": OTHER for tensor in LARGE})
    with pytest.raises(CorruptDataError, match=r"got a circle of 'other.safetensors'"):
        load_file(small / OTHER)


def test_too_long_a_row_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "MAX_LINKS", 0)
    with pytest.raises(LimitExceededError, match="each relative to the next one"):
        load_file(small / OTHER)


def test_too_many_tensors_of_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tensors(0)["layer.0"]
    write(tmp_path / "many" / MODEL, {"a": data})
    write(tmp_path / "many" / OTHER, {f"tensor.{index}": data for index in range(5)})
    compress_checkpoint(tmp_path / "many", tmp_path / "small")
    monkeypatch.setattr(beside, "MAX_RELATIVE", 4)
    with pytest.raises(LimitExceededError, match="at most 4 tensors of a file"):
        load_file(tmp_path / "small" / OTHER)
    assert not verify(tmp_path / "small").ok
    # A writer stores such a file without the other.
    report = compress_checkpoint(tmp_path / "many", tmp_path / "again")
    assert not any(file.num_relative for file in report.files)
    assert verify(tmp_path / "again").exact


def test_a_base_that_is_no_file_of_tensors(small: Path) -> None:
    (small / MODEL).write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(FormatError, match="GGUF") as caught:
        load_file(small / OTHER)
    assert caught.value.file == small / MODEL


def test_a_store(twice: Path, small: Path) -> None:
    pytest.importorskip("fsspec")
    compress_checkpoint(twice, "memory://beside/small")
    assert len(load_file("memory://beside/small/other.safetensors")) == 4
    assert verify("memory://beside/small").exact
    from fsspec import filesystem

    filesystem("memory").rm(f"/beside/small/{MODEL}")
    with pytest.raises(BaseMismatchError, match=r"there is no file 'memory:///beside/small/model.safetensors'"):
        load_file("memory://beside/small/other.safetensors")
    filesystem("memory").put(str(twice), "/beside/plain", recursive=True)
    compress_checkpoint("memory://beside/plain", small.parent / "from-store")
    assert contents(small.parent / "from-store") == contents(small)
