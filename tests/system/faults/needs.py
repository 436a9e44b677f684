"""What this machine lacks for a case."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

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
    if os.geteuid() != 0:
        return "network namespaces need root"
    tools = {"links": ("ip", "tc", "nsenter"), "loss": ("ip", "tc", "nsenter", "iptables")}[need]
    for tool in tools:
        if shutil.which(tool) is None:
            return f"{tool} is missing (Debian: iproute2, util-linux, iptables)"
    trial = {
        "links": "ip link add tw0 type veth peer name tw1 && "
        "tc qdisc add dev tw0 root tbf rate 1mbit burst 16kb latency 1s",
        "loss": "iptables -A INPUT -m statistic --mode random --probability 0.5 -j DROP",
    }[need]
    done = subprocess.run(["unshare", "--net", "sh", "-c", trial], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"the kernel refuses: {done.stderr.strip() or trial}"


def build_clock(folder: Path) -> Path:
    """Compile the library that lets a rank's wall clock step."""
    library = folder / "clock_step.so"
    source = Path(__file__).with_name("clock_step.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library
