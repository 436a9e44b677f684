"""The examples that need torch run, and find every bit equal."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("example", "package"),
    [
        ("demo.py", "transformers"),
        ("compressed_model.py", "torch"),
        ("larger_than_memory.py", "torch"),
        ("damaged_model.py", "safetensors"),
        ("sentences.py", "sentence_transformers"),
        ("diffusion.py", "diffusers"),
        ("device_kernels.py", "triton"),
    ],
)
def test_an_example_finds_every_bit_equal(example: str, package: str, repository: Path, tmp_path: Path) -> None:
    pytest.importorskip(package, minversion="3.2" if package == "triton" else None)
    run = subprocess.run(
        [sys.executable, repository / "examples" / example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("bit-identical: yes\n")
