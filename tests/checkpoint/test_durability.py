"""A result has its name only when all of it is on the disk, and then the name is on the disk as well."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tensorwire._ground import new_file
from tensorwire._ground.destination import Destination
from tensorwire.checkpoint import compress_checkpoint, decompress_checkpoint, save_file
from tests.support.acting import acting
from tests.support.checkpoint_models import SHARD

if TYPE_CHECKING:
    from pathlib import Path

NAMED = -1
"""In a list of inodes that were synced: here the result got its name."""


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Inodes in the order in which they were synced."""
    inodes: list[int] = []
    acting(monkeypatch, os, "fsync", lambda descriptor: inodes.append(os.fstat(descriptor).st_ino), after=True)
    acting(monkeypatch, Destination, "replace", lambda *_: inodes.append(NAMED))
    return inodes


def check(synced: list[int], result: Path) -> None:
    before, after = set(synced[: synced.index(NAMED)]), synced[synced.index(NAMED) :]
    for path in (result, *result.rglob("*")):
        assert path.stat().st_ino in before, f"{path.name} was not on the disk when the result got its name"
    assert result.parent.stat().st_ino in after


def test_a_directory(model: Path, tmp_path: Path, synced: list[int]) -> None:
    compress_checkpoint(model, tmp_path / "packed")
    check(synced, tmp_path / "packed")
    synced.clear()
    decompress_checkpoint(tmp_path / "packed", tmp_path / "restored")
    check(synced, tmp_path / "restored")


def test_a_file(model: Path, tmp_path: Path, synced: list[int]) -> None:
    compress_checkpoint(model / SHARD, tmp_path / "packed.safetensors")
    check(synced, tmp_path / "packed.safetensors")
    synced.clear()
    save_file({"w": np.arange(1000.0)}, tmp_path / "saved.safetensors")
    check(synced, tmp_path / "saved.safetensors")


def test_a_report(tmp_path: Path, synced: list[int]) -> None:
    path = tmp_path / "report.html"
    new_file.NewFile(path, force=False, example="report.html").write(b"page")
    assert synced == [path.stat().st_ino, NAMED]
    synced.clear()
    new_file.NewFile(path, force=True, example="report.html").write(b"page", sync=False)
    assert synced == [NAMED]
