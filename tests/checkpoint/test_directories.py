"""Directories without files come back as `diff -r` sees them, whatever way the checkpoint takes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint import (
    apply_checkpoint,
    compress_checkpoint,
    decompress_checkpoint,
    diff,
    estimate_ratio,
    transcode_checkpoint,
    verify,
)
from tests.support.checkpoint_models import edit_manifest
from tests.support.deltas import write_next

if TYPE_CHECKING:
    from pathlib import Path

EMPTY = ["assets/deep/er/est/", "logs/", "vae/cache/"]


@pytest.fixture
def model(model: Path) -> Path:
    for path in EMPTY:
        (model / path).mkdir(parents=True)
    (model / "logs").chmod(0o750)
    return model


@pytest.fixture
def packed(model: Path, tmp_path: Path) -> Path:
    compress_checkpoint(model, tmp_path / "packed")
    return tmp_path / "packed"


def assert_same_trees(a: Path, b: Path) -> None:
    done = subprocess.run(["diff", "-r", a, b], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    modes = [
        {str(path.relative_to(root)): path.stat().st_mode for path in root.rglob("*") if path.is_dir()}
        for root in (a, b)
    ]
    assert modes[0] == modes[1]


def test_they_come_back(model: Path, packed: Path, tmp_path: Path) -> None:
    assert json.loads((packed / "tensorwire.json").read_bytes())["directories"] == EMPTY
    decompress_checkpoint(packed, tmp_path / "back")
    assert_same_trees(model, tmp_path / "back")
    transcode_checkpoint(packed, tmp_path / "small", profile="compact")
    decompress_checkpoint(tmp_path / "small", tmp_path / "again")
    assert_same_trees(model, tmp_path / "again")


def test_they_come_back_from_a_copy_without_them(model: Path, packed: Path, tmp_path: Path) -> None:
    """As a hub or git keeps a compressed directory."""
    for path in EMPTY:
        os.removedirs(packed / path)
    assert verify(packed).exact
    assert decompress_checkpoint(packed, tmp_path / "back").ignored == ()
    for path in EMPTY:
        assert not list((tmp_path / "back" / path).iterdir())
    assert diff(model, tmp_path / "back").equal


def test_a_manifest_of_files_alone_has_none(packed: Path, tmp_path: Path) -> None:
    """What was written before there were any is read."""
    edit_manifest(packed, lambda body: body.pop("directories"))
    assert verify(packed).ignored == tuple(EMPTY)
    assert decompress_checkpoint(packed, tmp_path / "back").ignored == tuple(EMPTY)
    assert not (tmp_path / "back" / "logs").exists()


def test_what_is_left_out_leaves_its_directory(model: Path, tmp_path: Path) -> None:
    report = compress_checkpoint(model, tmp_path / "x", exclude=["*.png", "logs/"])
    assert report.excluded == ("assets/deep/image.png", "logs/")
    decompress_checkpoint(tmp_path / "x", tmp_path / "back")
    shutil.rmtree(model / "logs")
    (model / "assets" / "deep" / "image.png").unlink()
    assert_same_trees(model, tmp_path / "back")


def test_a_resumed_run(model: Path, packed: Path, tmp_path: Path) -> None:
    """What an earlier run has made of a tree that was another then is not kept."""

    def stop(done: int, total: int, path: str) -> None:
        if done == total:
            raise KeyboardInterrupt

    (model / "logs").rmdir()
    (model / "logs").write_text("a file at first")
    with pytest.raises(KeyboardInterrupt):
        compress_checkpoint(model, tmp_path / "x", progress=stop)
    (model / "logs").unlink()
    (model / "logs").mkdir()
    (model / "logs").chmod(0o750)
    assert any(file.resumed for file in compress_checkpoint(model, tmp_path / "x").files)
    assert_same_trees(packed, tmp_path / "x")


def test_they_may_be_replaced(model: Path, packed: Path, tmp_path: Path) -> None:
    compress_checkpoint(model, packed, force=True, profile="enec")
    back = tmp_path / "back"
    for _ in range(2):
        decompress_checkpoint(packed, back, force=True)
    (back / "mine").mkdir()
    with pytest.raises(FileExistsError, match="holds a directory that the result does not replace: 'mine'"):
        decompress_checkpoint(packed, back, force=True)
    (packed / "mine").mkdir()
    with pytest.raises(FileExistsError, match="'mine'"):
        compress_checkpoint(model, packed, force=True)


def test_in_place(model: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    write_next(model, new)
    (new / "logs" / "first.txt").write_text("no longer empty")
    (new / "runs" / "one").mkdir(parents=True)
    (new / "runs" / "one").chmod(0o700)
    compress_checkpoint(new, tmp_path / "delta", base=model)
    report = apply_checkpoint(tmp_path / "delta", model)
    assert report.notices == ()
    assert_same_trees(new, model)
    (model / "mine").mkdir()
    report = apply_checkpoint(tmp_path / "delta", model)
    assert report.notices == ("left as it is, since the delta does not list it: mine/",)


def test_in_place_where_something_else_stands(model: Path, tmp_path: Path) -> None:
    write_next(model, tmp_path / "new")
    (tmp_path / "new" / "runs").mkdir()
    compress_checkpoint(tmp_path / "new", tmp_path / "delta", base=model)
    (model / "runs").write_text("mine")
    config = (model / "config.json").read_bytes()
    with pytest.raises(FileExistsError, match="stands where the new checkpoint has a directory"):
        apply_checkpoint(tmp_path / "delta", model)
    assert (model / "config.json").read_bytes() == config


def test_other_commands(model: Path, packed: Path) -> None:
    estimate_ratio(model)
    assert verify(packed).ignored == ()
    assert diff(model, packed).equal
    (model / "logs").rmdir()
    found = diff(model, packed)
    assert (found.files, found.equal) == (("logs/",), False)
