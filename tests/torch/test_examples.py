"""The examples that need torch run, and find every bit equal.

Examples that import much, interpret kernels or start ranks are slow. Tests of the same code are quick (RELEASE.md).
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


OLDEST = {
    "device_kernels.py": "3.2",
    "dcp_resume.py": "2.6",  # where fully_shard got its name
    "traffic_fsdp.py": "2.9",  # where FSDP2 got its hooks
    "traffic_sdp4bit.py": "2.9",
}


SLOW_EXAMPLES = [
    ("damaged_model.py", "safetensors"),
    ("demo.py", "transformers"),
    ("larger_than_memory.py", "torch"),
    ("sentences.py", "sentence_transformers"),
    ("diffusion.py", "diffusers"),
    ("device_kernels.py", "triton"),
    ("traffic_fsdp.py", "torch"),
    ("traffic_sdp4bit.py", "torch"),
    ("dcp_resume.py", "torch"),
    ("sync_minilm.py", "transformers"),
    ("accelerate_state.py", "accelerate"),
]


@pytest.mark.parametrize(
    ("example", "package"),
    [
        ("ray_compress.py", "ray"),
        ("trl_publish.py", "trl"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW_EXAMPLES),
    ],
)
def test_an_example_finds_every_bit_equal(example: str, package: str, repository: Path, tmp_path: Path) -> None:
    pytest.importorskip(package, minversion=OLDEST.get(example))
    run = subprocess.run(
        [sys.executable, repository / "examples" / example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("bit-identical: yes\n")


@pytest.mark.parametrize("example", ["compressed_model.py", "offload_training.py"])
def test_an_example_of_this_process(
    example: str, repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that reads and writes no files: torch is here already. It seeds the generator that later tests draw from."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", [example])
    with torch.random.fork_rng(), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(repository / "examples" / example), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.endswith("bit-identical: yes\n")
