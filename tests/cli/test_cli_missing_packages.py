"""The command line on a machine that lacks a package which it needs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("package", "arguments"),
    [("click", ["--version"]), ("rich", ["inspect", "model.safetensors"]), ("pathspec", ["compress", "."])],
)
def test_a_missing_package_is_one_line(model: Path, package: str, arguments: list[str]) -> None:
    code = (
        f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv[1:] = {arguments!r}; "
        "runpy.run_module('tensorwire', run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=model, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert f"pip install {package}" in ran.stderr
