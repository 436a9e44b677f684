"""diff and inspect of directories in which several files hold tensors of the same name."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import Run


def test_diff_and_inspect_name_the_file_where_names_repeat(model: Path, tmp_path: Path, run: Run) -> None:
    shutil.copy(model / "model.safetensors", model / "model.fp16.safetensors")
    other = tmp_path / "other"
    shutil.copytree(model, other)
    assert run("diff", model, other).code == 0
    save_file({"layer.bias": np.zeros(200, np.float32)}, other / "model.fp16.safetensors")
    ran = run("diff", model, other)
    assert (ran.code, ran.err) == (3, "")
    rows = [line.split() for line in ran.out.splitlines()]
    assert rows[0][:3] == ["tensor", "file", "change"]
    assert ["layer.bias", "model.fp16.safetensors", "changed"] in [row[:3] for row in rows]
    assert run("diff", model, other, "--json").json["by_file"] is True
    assert "model.fp16.safetensors" in run("inspect", model).out


def test_diff_has_no_column_of_files_where_names_are_unique(model: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"layer.bias": np.zeros(200, np.float32)}, other)
    assert run("diff", model, other).out.split()[:2] == ["tensor", "change"]
