"""What a killed run in place leaves in a model is no file of the model for any command, and goes with the model."""

from __future__ import annotations

import fcntl
import shutil
from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint import (
    apply_checkpoint,
    compress_checkpoint,
    decompress_checkpoint,
    diff,
    estimate_ratio,
    verify,
)
from tensorwire.storage.staging import _LOCK_TEXT
from tests.support.checkpoint_models import SHARD, tree_hashes
from tests.support.deltas import write_next

if TYPE_CHECKING:
    from pathlib import Path

PARTIAL = f"{SHARD}.partial"


def leave(root: Path, what: str) -> Path:
    """A staging directory as a kill leaves it."""
    partial = root / PARTIAL
    partial.mkdir()
    if what != "directory":
        (partial / "lock").write_bytes(b"" if what == "lock" else _LOCK_TEXT)
    if what == "result":
        (partial / "journal.jsonl").write_text('{"action": "apply"}\n')
        shutil.copy(root / SHARD, partial / "result")
    return partial


@pytest.fixture(params=["directory", "lock", "signed lock", "result"])
def left(model: Path, request: pytest.FixtureRequest) -> Path:
    return leave(model, request.param)


def test_it_is_no_file_of_the_model(packed: Path, left: Path, tmp_path: Path) -> None:
    report = compress_checkpoint(left.parent, tmp_path / "x")
    assert report.excluded == (f"{PARTIAL}/",)
    assert tree_hashes(tmp_path / "x").keys() == tree_hashes(packed).keys()
    assert diff(left.parent, packed).equal
    assert verify(left.parent).num_files == 3
    assert left.is_dir()
    estimate_ratio(left.parent)


def test_it_goes_with_the_directory_that_is_replaced(packed: Path, left: Path) -> None:
    model = left.parent
    decompress_checkpoint(packed, model, force=True)
    assert not left.exists()
    found = leave(packed, "result")
    assert decompress_checkpoint(packed, model, force=True).ignored == (f"{PARTIAL}/",)
    compress_checkpoint(model, packed, force=True)
    assert not found.exists()


def test_a_directory_in_which_a_run_works_is_not_replaced(packed: Path, model: Path) -> None:
    left = leave(model, "result")
    with (left / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FileExistsError, match="does not replace"):
            decompress_checkpoint(packed, model, force=True)
    assert (left / "result").exists()


def test_the_same_command_removes_it(left: Path, tmp_path: Path) -> None:
    model, new = left.parent, tmp_path / "new"
    write_next(model, new)
    shutil.rmtree(new / PARTIAL)
    compress_checkpoint(new, tmp_path / "delta", base=model)
    for _ in range(2):
        apply_checkpoint(tmp_path / "delta", model)
        assert tree_hashes(model) == tree_hashes(new)
        assert not left.exists()
        leave(model, "signed lock")


def test_of_another_run_it_is_named(model: Path, tmp_path: Path) -> None:
    write_next(model, tmp_path / "new")
    compress_checkpoint(tmp_path / "new", tmp_path / "delta", base=model)
    (model / "other.partial").mkdir()
    report = apply_checkpoint(tmp_path / "delta", model)
    assert report.notices == ("left as it is, since the delta does not list it: other.partial/",)


def test_a_directory_that_is_only_called_so_counts(model: Path, tmp_path: Path) -> None:
    (model / "mine.partial").mkdir()
    (model / "mine.partial" / "notes.txt").write_text("mine")
    compress_checkpoint(model, tmp_path / "x")
    assert (tmp_path / "x" / "mine.partial" / "notes.txt").exists()
