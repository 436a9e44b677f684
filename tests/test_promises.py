"""What is written down twice agrees: the README's example runs, and the binding has the numbers of the C header."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tensorwire import _core

if TYPE_CHECKING:
    from pathlib import Path


def test_the_example_of_the_readme_runs(repository: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", (repository / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    check = "assert rows.tobytes() == weights[100:200].tobytes()\n"
    subprocess.run([sys.executable, "-W", "error", "-c", example + check], cwd=tmp_path, check=True)


@pytest.mark.parametrize("name", ["MAX_NDIM", "FIXED_HEADER_NBYTES", "LEAF_NBYTES", "STREAM_NBYTES"])
def test_the_binding_has_the_constants_of_the_header(repository: Path, name: str) -> None:
    header = (repository / "core/include/tensorwire.h").read_text()
    (number,) = re.findall(rf"^#define TW_{name} (\d+)u?\b", header, re.MULTILINE)
    assert getattr(_core, name) == int(number)


def test_the_binding_has_the_fields_of_the_header(repository: Path) -> None:
    header = (repository / "core/include/tensorwire.h").read_text()
    for name, binding in {"error": _core.Error, "frame": _core.Frame, "block_info": _core.BlockInfo}.items():
        (body,) = re.findall(rf"^typedef struct tw_{name} {{\n(.*?)^}} tw_{name};", header, re.MULTILINE | re.DOTALL)
        declared = re.findall(r"^  \w+ (\w+)(?:\[\w+\])?;", body, re.MULTILINE)
        assert declared
        assert [field[0] for field in binding._fields_] == declared
