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
from tensorwire.errors import CorruptDataError, LimitExceededError
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
    assert torch.equal(load_file(tmp_path, framework="pt")["model.flags@0"], state(2)["model"]["flags"])


def test_a_save_of_torchs_own_writer_over_ours_is_told_by_all(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    dcp.save(state(2), storage_writer=dcp.FileSystemWriter(tmp_path))
    text = "torch's FileSystemWriter has written this checkpoint: load it with torch's FileSystemReader"
    for call in (lambda: inspect(tmp_path), lambda: open_file(tmp_path), TensorwireReader(tmp_path).read_metadata):
        with pytest.raises(CorruptDataError) as caught:
            call()
        assert str(caught.value) == f"{text} (file {str(tmp_path / '.metadata')!r})", "nothing is damaged"
    assert text in verify(tmp_path).problems[0].message


def _change(body: dict[str, Any], what: str) -> None:
    weight, row = body["state_dict"]["model.weight"], body["storage"][0]
    if what == "version":
        body["version"] = 2
    if what == "place":
        body["storage"].pop(0)
    if what == "checksum":
        body["files"][row[2]] = "0" * 31
    if what == "hole":
        weight["chunks"] = [[[0, 0], [299, 400]]]
    if what == "dimensions":
        weight["size"] = [2**62] * 100_000
    if what == "huge":
        weight["size"] = [2**40, 2**40]
    if what == "true":
        weight["size"] = [True, 400]
    if what == "offsets":
        row[1] = [2**61 - 1, 0]
    if what == "text":
        body["writer"] = "other"  # under the checksum of before


@pytest.mark.parametrize(
    "what", ["version", "place", "checksum", "hole", "dimensions", "huge", "true", "offsets", "text"]
)
def test_the_same_metadata_is_refused_by_all(tmp_path: Path, what: str) -> None:
    save(tmp_path, state(1))
    body = json.loads((tmp_path / JSON).read_text())
    _change(body, what)
    (tmp_path / JSON).write_bytes(json.dumps(body).encode() if what == "text" else sealed(body))
    texts = []
    for call in (lambda: inspect(tmp_path), lambda: open_file(tmp_path), TensorwireReader(tmp_path).read_metadata):
        with pytest.raises(ValueError, match=JSON) as caught:
            call()
        texts.append(str(caught.value))
    texts.append(verify(tmp_path).problems[0].message)
    assert len(set(texts)) == 1
    assert what != "text" or "other text than was written" in texts[0]


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
