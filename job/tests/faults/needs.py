"""What this machine lacks for a case."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support import links

from .quota import cpu_controller

FREEZER = Path("/sys/fs/cgroup/freezer")  # version 1's


@cache
def missing(need: str) -> str:
    """Why this machine cannot do what a case needs; "" if it can."""
    if need == "quota":
        return "" if cpu_controller() else "no cgroup with a CPU quota may be made here"
    if need == "freezer":
        return "" if FREEZER.is_dir() and os.access(FREEZER, os.W_OK) else "no control group may be frozen here"
    if need == "clock":
        return "" if shutil.which("cc") else "no C compiler, which makes the clock that steps"
    if need in ("", "services"):
        return ""
    if need == "links":
        return links.missing()
    assert need == "loss", need
    return links.missing("iptables", trial="iptables -A INPUT -m statistic --mode random --probability 0.5 -j DROP")


def build_clock(folder: Path) -> Path:
    """Compile the library that lets a rank's wall clock step."""
    library = folder / "clock_step.so"
    source = Path(__file__).with_name("clock_step.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library
