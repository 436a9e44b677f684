"""The command line on a machine that lacks a package which it needs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING

import pytest

from tensorwire._ground.packages import how_to_install
from tests.support.acting import raising

if TYPE_CHECKING:
    from pathlib import Path


def test_what_to_type_is_true_wherever_this_package_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own name is on no index yet: another project might have it there by then."""
    assert re.fullmatch(r"pip install 'fsspec>=[\d.]+'", how_to_install("remote"))
    for package in ("torch", "transformers", "safetensors"):
        assert f"'{package}>=" in how_to_install("transformers")
    monkeypatch.setattr("tensorwire._ground.packages.requires", raising(PackageNotFoundError()))
    assert how_to_install("remote") == "in a clone, pip install '.[remote]'"


def test_no_text_sends_anyone_to_an_index_for_this_package(repository: Path) -> None:
    sources = [path for folder in ("src", "job/src") for path in (repository / folder).rglob("*.py")]
    told = re.compile(r"pip install\b[^\n]*tensorwire|tensorwire(-job)?\[")
    assert [str(path) for path in sources if told.search(path.read_text())] == []


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
