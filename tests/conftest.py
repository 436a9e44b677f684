"""Fixtures that several test files use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorwire.checkpoint import compress_checkpoint
from tests.support.checkpoint_models import write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint of two shards."""
    write_model(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def packed(model: Path, tmp_path: Path) -> Path:
    """The same, compressed."""
    compress_checkpoint(model, tmp_path / "packed")
    return tmp_path / "packed"
