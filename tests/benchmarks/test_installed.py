"""The benchmark of what `tensorwire.torch.install` costs, on small files."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.environment import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch")

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.programs import Programs


def test_dense_loads_have_a_row_each(tmp_path: Path) -> None:
    from benchmarks.codecs import installed

    own = torch.load
    found = installed.load_rows(2, {"x": torch.ones(300)}, tmp_path)
    assert torch.load is own
    whats = [row["what"] for row in found]
    assert whats == [f"{call}, {file}" for file in ("MiniLM", "8 numbers") for call in ("load_file", "torch.load")]
    assert all(row["without_ms"] > 0 and row["with_ms"] > 0 for row in found)


def test_the_committed_loads_of_a_model_take_at_most_a_hundredth_longer() -> None:
    rows = json.loads((ROOT / "benchmarks/results/installed.json").read_text())["rows"]
    longer = {row["what"]: row["longer"] for row in rows if row["what"].endswith(", MiniLM")}
    assert longer.keys() == {"load_file, MiniLM", "torch.load, MiniLM"}
    assert max(longer.values()) <= 0.01


@pytest.mark.slow
@pytest.mark.xdist_group("programs")
def test_imports_have_a_row(programs: Programs) -> None:
    code = "from benchmarks.codecs.installed import import_rows; print(import_rows(1)[0]['rounds'])"
    done = programs.run(f"import sys; sys.path[:0] = {sys.path!r}\n{code}")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
