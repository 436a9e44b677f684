"""Where a rank has its page and its script."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "pages"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"
