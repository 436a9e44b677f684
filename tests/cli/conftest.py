"""Fixtures of the tests of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safetensors.numpy import save_file

from tensorwire.cli import main
from tests.support.command_line import Ran, tensors

if TYPE_CHECKING:
    from tests.support.command_line import Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_main(*args: object) -> Ran:
        code = main([str(argument) for argument in args])
        return Ran(code, *capsys.readouterr())

    return run_main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory as it comes from a hub."""
    path = tmp_path / "model"
    path.mkdir()
    save_file(tensors(), path / "model.safetensors")
    (path / "config.json").write_text('{"model_type": "bert"}')
    (path / "notes.txt").write_text("kept as they are")
    return path


@pytest.fixture
def compressed(model: Path, run: Run) -> Path:
    path = model.with_name("small")
    assert run("compress", model, path).code == 0
    return path
