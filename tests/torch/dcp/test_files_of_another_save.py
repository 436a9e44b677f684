"""Files of distributed checkpoints in places that are not theirs. All that read such a checkpoint agree on it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from tensorwire import diff, inspect, load_file, open_file, save_file, verify
from tensorwire.checkpoint.directory import distributed
from tensorwire.errors import CorruptDataError, LimitExceededError, UnsupportedVersionError
from tensorwire.torch.dcp import TensorwireReader
from tests.support.distributed import failure, loaded, same, save, sealed, state

if TYPE_CHECKING:
    from collections.abc import Callable

JSON = "tensorwire-dcp.json"


def shard(folder: Path) -> Path:
    (found,) = folder.glob("__*.safetensors")
    return found


def check_refused(folder: Path, error: type[Exception], text: str) -> None:
    """By each reader, in the same words, with the name of the file."""
    name = shard_name(folder)
    with pytest.raises(CheckpointException) as caught:
        loaded(folder, state())
    assert isinstance(failure(caught), error)
    found = [str(failure(caught))]
    calls: list[Callable[[], Any]] = [
        lambda: inspect(folder),
        lambda: load_file(folder, framework="pt"),
        lambda: open_file(folder),
        lambda: diff(folder, folder),
        lambda: save_file({"a": torch.zeros(4)}, folder.parent / "new.safetensors", base=folder),
    ]
    for call in calls:
        with pytest.raises(error) as raised:
            call()
        found.append(str(raised.value))
    problems = verify(folder).problems
    found += [problem.message for problem in problems]
    assert len(found) == len(calls) + 2
    assert all(text in each and name in each for each in found), found


def shard_name(folder: Path) -> str:
    (name,) = json.loads((folder / JSON).read_text())["files"]
    return str(name)


def test_a_file_of_another_step_is_refused(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path / str(step), state(step))
    shutil.copyfile(shard(tmp_path / "2"), shard(tmp_path / "1"))
    check_refused(tmp_path / "1", CorruptDataError, "a file of another rank or of another save stands in its place")
    assert verify(shard(tmp_path / "1")).ok, "nothing is wrong with the file itself"


def test_a_file_that_was_written_anew_is_refused(tmp_path: Path) -> None:
    """With the same names, and with the same metadata."""
    save(tmp_path, state(1))
    place = shard(tmp_path)
    tensors = load_file(place, framework="pt")
    tensors["model.weight@0,0"][7] += 1
    save_file(tensors, place)
    check_refused(tmp_path, CorruptDataError, "expected the file that was saved with this checkpoint")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    shard(tmp_path).unlink()
    check_refused(tmp_path, FileNotFoundError, "is missing: copy it from where the checkpoint was saved")


def test_what_the_metadata_does_not_name_counts_for_nothing(tmp_path: Path) -> None:
    save(tmp_path / "other", state(2))
    save(tmp_path / "c", state(1))
    extra = shutil.copy(shard(tmp_path / "other"), tmp_path / "c" / "__7_0123456789abcdef.safetensors")
    assert same(loaded(tmp_path / "c", state()), state(1))
    report = verify(tmp_path / "c")
    assert report.ok
    assert (report.num_files, report.ignored) == (1, (Path(extra).name,))
    assert inspect(tmp_path / "c").files == (shard_name(tmp_path / "c"),)


@pytest.mark.parametrize("without", [JSON, ".metadata"])
def test_each_of_the_two_knows_the_files(tmp_path: Path, without: str) -> None:
    for step in (1, 2):
        save(tmp_path / str(step), state(step))
    folder, name = tmp_path / "1", shard(tmp_path / "1").name
    (folder / without).unlink()
    left = shutil.copy(shard(tmp_path / "2"), folder / "__7_0123456789abcdef.safetensors")
    assert same(loaded(folder, state()), state(1))
    assert inspect(folder).files == (name,)
    assert verify(folder).ignored == (Path(left).name,)
    shutil.move(left, folder / name)
    text = "expected the file that was saved with this checkpoint"
    with pytest.raises(CheckpointException, match=text):
        loaded(folder, state())
    with pytest.raises(CorruptDataError, match=text):
        inspect(folder)
    assert text in verify(folder).problems[0].message


def test_metadata_of_another_save_names_files_that_are_not_there(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path / str(step), state(step))
    for name in (JSON, ".metadata"):
        shutil.copyfile(tmp_path / "2" / name, tmp_path / "1" / name)
    with pytest.raises(CheckpointException, match="is missing: copy it from where the checkpoint was saved"):
        loaded(tmp_path / "1", state())
    assert not verify(tmp_path / "1").ok


def test_a_save_that_ended_between_pickle_and_json_is_read_by_all(tmp_path: Path) -> None:
    """The JSON is of the save before, whose file stands there too."""
    save(tmp_path, state(1))
    old, old_shard = (tmp_path / JSON).read_bytes(), shard(tmp_path)
    content = old_shard.read_bytes()
    save(tmp_path, state(2))
    new = shard_name(tmp_path)
    (tmp_path / JSON).write_bytes(old)
    old_shard.write_bytes(content)
    assert same(loaded(tmp_path, state()), state(2))
    assert inspect(tmp_path).files == (new,)
    assert verify(tmp_path).ignored == (old_shard.name,)
    assert [tensor.name for tensor in inspect(tmp_path).tensors if "flags" in tensor.name] == ["model.flags@0"]


def test_a_save_of_torchs_own_writer_over_ours_is_told_by_all(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    dcp.save(state(2), storage_writer=dcp.FileSystemWriter(tmp_path))
    text = "torch's FileSystemWriter has written this checkpoint: load it with torch's FileSystemReader"
    for call in (lambda: inspect(tmp_path), lambda: open_file(tmp_path), TensorwireReader(tmp_path).read_metadata):
        with pytest.raises(CorruptDataError) as caught:
            call()
        assert str(caught.value) == f"{text} (file {str(tmp_path / '.metadata')!r})", "nothing is damaged"
    assert text in verify(tmp_path).problems[0].message


def _set(body: dict[str, Any], key: str, value: Any) -> None:
    body[key] = value


def _chunks(value: list[Any]) -> Any:
    return lambda body: _set(body["state_dict"]["model.weight"], "chunks", value)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda body: _set(body, "format", "other"), CorruptDataError, "format 'other'"),
        (lambda body: _set(body, "version", 2), UnsupportedVersionError, "of version 1, got 2"),
        (lambda body: body.pop("storage"), CorruptDataError, "KeyError: 'storage'"),
        (lambda body: body["storage"].pop(0), CorruptDataError, "expected a place for each part of"),
        (lambda body: _set(body["storage"][0], 2, "../other.safetensors"), CorruptDataError, "names of files beside"),  # type: ignore[arg-type]
        (lambda body: _set(body["storage"][0], 2, "/etc/passwd"), CorruptDataError, "names of files beside"),  # type: ignore[arg-type]
        (lambda body: _set(body["storage"][0], 2, ["a"]), CorruptDataError, "names of files beside"),  # type: ignore[arg-type]
        (lambda body: _set(body["storage"][0], 2, {"a": 1}), CorruptDataError, "names of files beside"),  # type: ignore[arg-type]
        (lambda body: _set(body["storage"][0], 2, None), CorruptDataError, "names of files beside"),  # type: ignore[arg-type]
        (lambda body: _set(body["storage"][0], 3, "other"), CorruptDataError, "expected the entry"),  # type: ignore[arg-type]
        (_chunks([[0]]), CorruptDataError, "ValueError"),
        (_chunks([]), CorruptDataError, "parts of 'model.weight' that fill it"),
        (_chunks([[[0, 0], [299, 400]]]), CorruptDataError, "parts of 'model.weight' that fill it"),
        (_chunks([[[0, 0], [150, 400]]] * 2), CorruptDataError, "that fill it, each place once"),
        (_chunks([[[0, 0], [150, 400]], [[100, 0], [150, 400]]]), CorruptDataError, "that fill it, each place once"),
        (_chunks([[[0, 0], [600, 200]]]), CorruptDataError, "parts of 'model.weight' that lie in it"),
        (_chunks([[[0, 0], [-300, -400]]]), CorruptDataError, "parts of 'model.weight' that lie in it"),
        (_chunks([[[0], [300, 400]]]), CorruptDataError, "parts of 'model.weight' that lie in it"),
        (lambda body: _set(body, "state_dict", []), CorruptDataError, "AttributeError"),
        (lambda body: _set(body["files"], body["storage"][0][2], "0" * 31), CorruptDataError, ""),
        (lambda body: _set(body["state_dict"]["model.weight"], "size", [2**62] * 100_000), CorruptDataError, ""),
        (lambda body: _set(body["state_dict"]["model.weight"], "size", [2**40, 2**40]), CorruptDataError, ""),
        (lambda body: _set(body["state_dict"]["model.weight"], "size", [True, 400]), CorruptDataError, ""),
        (lambda body: _set(body["storage"][0], 1, [2**61 - 1, 0]), CorruptDataError, ""),  # type: ignore[arg-type]
    ],
)
def test_metadata_that_contradicts_itself(tmp_path: Path, change: Any, error: type[Exception], text: str) -> None:
    """Under a checksum that is right."""
    save(tmp_path, state(1))
    body = json.loads((tmp_path / JSON).read_text())
    change(body)
    (tmp_path / JSON).write_bytes(sealed(body))
    check_metadata_refused(tmp_path, error, text)


def test_metadata_with_a_dtype_that_torch_lacks(tmp_path: Path) -> None:
    """What knows nothing of torch takes it."""
    save(tmp_path, state(1))
    body = json.loads((tmp_path / JSON).read_text())
    body["state_dict"]["model.weight"]["dtype"] = "load"
    (tmp_path / JSON).write_bytes(sealed(body))
    with pytest.raises(CorruptDataError, match=f"no dtype of torch.*{JSON}"):
        TensorwireReader(tmp_path).read_metadata()


def check_metadata_refused(folder: Path, error: type[Exception], text: str) -> None:
    texts = []
    for call in (lambda: inspect(folder), lambda: open_file(folder), TensorwireReader(folder).read_metadata):
        with pytest.raises(error, match=f"{text}.*{JSON}") as caught:
            call()
        texts.append(str(caught.value))
    texts.append(verify(folder).problems[0].message)
    assert len(set(texts)) == 1
    with pytest.raises(CheckpointException, match=JSON):
        loaded(folder, state())


def test_metadata_with_another_checksum_is_refused_by_all(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    body = json.loads((tmp_path / JSON).read_text())
    (tmp_path / JSON).write_text(json.dumps(body | {"writer": "other"}))
    check_metadata_refused(tmp_path, CorruptDataError, "other text than was written")


def test_metadata_that_no_reader_takes_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, state(1))
    nbytes = max((tmp_path / name).stat().st_size for name in (JSON, ".metadata"))
    monkeypatch.setattr(distributed, "MAX_NBYTES", nbytes)
    assert same(loaded(tmp_path, state()), state(1))
    larger = state(2) | {"a name that takes more room": 1}
    with pytest.raises(CheckpointException) as caught:
        save(tmp_path, larger)
    assert isinstance(failure(caught), LimitExceededError)
    assert same(loaded(tmp_path, state()), state(1))
    monkeypatch.setattr(distributed, "MAX_NBYTES", nbytes - 1)
    for call in (lambda: inspect(tmp_path), lambda: open_file(tmp_path), TensorwireReader(tmp_path).read_metadata):
        with pytest.raises(LimitExceededError, match=f"at most {nbytes - 1:,} bytes, got {nbytes:,}"):
            call()
    assert verify(tmp_path).problems[0].kind == "LimitExceededError"
