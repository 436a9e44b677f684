"""Fixtures that several test files use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tensorwire.checkpoint import compress_checkpoint
from tests.support.checkpoint_models import write_model


@pytest.fixture(scope="session")
def _kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kit = tmp_path_factory.mktemp("kit")
    write_model(kit / "model")
    compress_checkpoint(kit / "model", kit / "packed")
    return kit


@pytest.fixture
def model(_kit: Path, tmp_path: Path) -> Path:
    """A checkpoint of two shards."""
    return Path(shutil.copytree(_kit / "model", tmp_path / "model"))


@pytest.fixture
def packed(_kit: Path, model: Path, tmp_path: Path) -> Path:
    """The same, compressed."""
    return Path(shutil.copytree(_kit / "packed", tmp_path / "packed"))
