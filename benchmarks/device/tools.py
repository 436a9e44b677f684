"""Programs that a section starts: NVIDIA's tools, and jobs that are ended with all that they started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from benchmarks import environment

_FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/nsight-compute/*")


def find(name: str) -> str | None:
    """A tool of NVIDIA's, which CUDA's packages put beside the path; None if it is not there."""
    places = [str(place) for folder in _FOLDERS for place in sorted(Path("/").glob(folder[1:]), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))


def output(command: list[str], seconds: float, **variables: str) -> tuple[int | None, str]:
    """Its exit code and what it printed; no exit code if it was ended after so many seconds."""
    process = subprocess.Popen(
        command, env=environment.child(**variables), cwd=environment.ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, text
