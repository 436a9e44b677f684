"""The example of a connector for vLLM, on vLLM's CPU backend. ``make vllm`` has the environment for it."""

from __future__ import annotations

import os
import resource
import runpy
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("vllm", reason="vLLM is missing, which make vllm installs apart from everything else")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]


def test_tokens_and_likelihoods_are_those_without_it(repository: Path, tmp_path: Path) -> None:
    """While it stores, once it loads, and with a damaged file."""
    settings = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its processes take long to start
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(tmp_path / "cache"),
    }
    run = subprocess.run(
        [sys.executable, repository / "examples" / "vllm_kv_connector.py"],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert "256 of 380 tokens loaded" in run.stdout
    for what in ("stored", "loaded", "with a damaged file"):
        assert f"equal tokens and likelihoods, {what}: yes" in run.stdout
    assert "are computed again: expected checksum" in run.stdout + run.stderr


def test_a_file_is_written_whole_or_not_at_all(repository: Path, tmp_path: Path) -> None:
    """The system ends a write midway, as that of a full disk does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write = runpy.run_path(str(repository / "examples" / "vllm_kv_connector.py"))["write"]
    write(tmp_path / "file", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(OSError, match="File too large"):
            write(tmp_path / "file", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
