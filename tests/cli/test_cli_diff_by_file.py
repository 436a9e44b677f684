"""diff and inspect of directories in which several files hold tensors of the same name."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.command_line import on_terminal

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


def test_what_differs_is_counted_by_kind(model: Path, tmp_path: Path, run: Run) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    same, one = np.zeros(8, np.float32), np.ones(1, np.float32)
    save_file({"same": same, "edited": same, "cast": same, "gone": one}, a)
    edited = same.copy()
    edited[:3] = 1
    save_file({"same": same, "edited": edited, "cast": same.astype(np.float16), "new": one, "newer": one}, b)
    assert "5 tensors differ (1 changed in 3 elements, 1 retyped, 1 removed, 2 added), 1 equal" in run("diff", a, b).out


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_cuts_no_number(tmp_path: Path, width: int) -> None:
    """Names of tensors, what became of them and how many elements differ stay when there is a column of files."""
    a, b = tmp_path / "a", tmp_path / "b"
    for root, value in ((a, 0), (b, 1)):
        for part in ("text_encoder", "unet"):
            (root / part).mkdir(parents=True)
            save_file({"shared.weight": np.full(1000, value, np.float32)}, root / part / "diffusion_model.safetensors")
    screen = on_terminal(width, "diff", a, b, code=3)
    rows = [line.split() for line in screen if line.startswith("shared.weight")]
    assert len(rows) == 2
    assert all("changed" in row and "1,000" in row for row in rows)
    assert all(len(line) <= width for line in screen[:4])
