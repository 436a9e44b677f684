"""Files beside the tensors that were edited or lost after compressing: restored or kept, and reported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint import (
    ChangedFile,
    compress_checkpoint,
    decompress_checkpoint,
    transcode_checkpoint,
    verify,
)
from tensorwire.errors import CorruptDataError
from tests.support.acting import interrupt
from tests.support.checkpoint_models import SHARD, tree_hashes

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"

EDITED = ChangedFile("tokenizer.json", "edited", "kept")
LOST = ChangedFile("empty.txt", "missing", "left out")
EDITED_CONFIG = ChangedFile("config.json", "edited", "restored")
LOST_INDEX = ChangedFile(INDEX, "missing", "restored")


@pytest.fixture
def changed(packed: Path) -> Path:
    """A compressed directory after a day on a hub."""
    (packed / "tokenizer.json").write_text("edited")
    (packed / "empty.txt").unlink()
    config = json.loads((packed / "config.json").read_bytes())
    (packed / "config.json").write_text(json.dumps({**config, "use_cache": False}))
    (packed / INDEX).unlink()
    return packed


def test_decompress_restores_what_is_recorded_and_keeps_the_rest(model: Path, changed: Path, tmp_path: Path) -> None:
    before = tree_hashes(changed)
    report = decompress_checkpoint(changed, tmp_path / "back")
    assert set(report.changed) == {EDITED, LOST, EDITED_CONFIG, LOST_INDEX}
    assert not report.exact
    found, expected = tree_hashes(tmp_path / "back"), tree_hashes(model)
    assert found.pop("tokenizer.json") == before["tokenizer.json"]
    del expected["tokenizer.json"], expected["empty.txt"]
    assert found == expected
    assert {file.path for file in report.files if file.nbytes_out} == expected.keys() | {"tokenizer.json"}
    assert tree_hashes(changed) == before


def test_what_the_manifest_holds_is_restored_exactly(model: Path, packed: Path, tmp_path: Path) -> None:
    (packed / "config.json").unlink()
    report = decompress_checkpoint(packed, tmp_path / "back")
    assert report.changed == (ChangedFile("config.json", "missing", "restored"),)
    assert report.exact
    assert tree_hashes(tmp_path / "back") == tree_hashes(model)


def test_verify_tells_the_same(changed: Path) -> None:
    report = verify(changed)
    assert (report.ok, report.problems, report.exact) == (True, (), False)
    assert set(report.changed) == {EDITED, LOST, EDITED_CONFIG, LOST_INDEX}


def test_transcode_takes_the_directory_as_it_is_now(changed: Path, tmp_path: Path) -> None:
    report = transcode_checkpoint(changed, tmp_path / "other", profile="compact")
    assert set(report.changed) == {EDITED, LOST, EDITED_CONFIG, LOST_INDEX}
    again = verify(tmp_path / "other")
    assert (again.ok, again.exact, again.changed) == (True, True, ())
    decompress_checkpoint(changed, tmp_path / "a")
    decompress_checkpoint(tmp_path / "other", tmp_path / "b")
    assert tree_hashes(tmp_path / "a") == tree_hashes(tmp_path / "b")


@pytest.mark.parametrize(
    ("name", "error"),
    [("tokenizer.json", CorruptDataError), ("config.json", CorruptDataError), ("empty.txt", FileNotFoundError)],
)
def test_strict_refuses(packed: Path, tmp_path: Path, name: str, error: type[Exception]) -> None:
    if error is FileNotFoundError:
        (packed / name).unlink()
    else:
        (packed / name).write_text("{}")
    for operation in (
        lambda: decompress_checkpoint(packed, tmp_path / "x", strict=True),
        lambda: transcode_checkpoint(packed, tmp_path / "x", profile="enec", strict=True),
    ):
        with pytest.raises(error):
            operation()
        assert not (tmp_path / "x").exists()
    report = verify(packed, strict=True)
    assert [(problem.kind, problem.file) for problem in report.problems] == [(error.__name__, name)]
    assert (report.ok, report.exact, report.changed) == (False, False, ())


def test_tensors_stay_strict(packed: Path, tmp_path: Path) -> None:
    (packed / SHARD).unlink()
    seen: list[str] = []
    with pytest.raises(FileNotFoundError, match=r"tensorwire\.json lists, is missing; fetch it") as caught:
        decompress_checkpoint(packed, tmp_path / "x", progress=lambda done, total, path: seen.append(path))
    assert caught.value.filename == str(packed / SHARD)
    assert not seen, "it is known before any work is done"
    assert [problem.kind for problem in verify(packed).problems] == ["FileNotFoundError"]


def test_a_run_that_was_interrupted_still_tells(model: Path, tmp_path: Path) -> None:
    """A large file that was kept is told of again by the run that goes on."""
    (model / "zz.bin").write_bytes(bytes(2 << 20))
    packed = tmp_path / "packed"
    compress_checkpoint(model, packed)
    (packed / "merges.txt").write_text("never compressed")
    (packed / "zz.bin").write_bytes(b"1" * (2 << 20))

    interrupt(decompress_checkpoint, packed, tmp_path / "back", at=INDEX)
    report = decompress_checkpoint(packed, tmp_path / "back")
    assert any(file.resumed for file in report.files)
    assert report.changed == (ChangedFile("zz.bin", "edited", "kept"),)
    assert not report.exact
