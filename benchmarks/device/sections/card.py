"""What the card is, and whether the kernels compile and run on it."""

from __future__ import annotations

import platform
import re
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch.nn.functional import linear

from benchmarks.device import tools
from benchmarks.device.measure import PROFILES, compressed
from benchmarks.device.runner import Row, Section

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench


def run(bench: Bench) -> Generator[Row, None, None]:
    yield {"what": "card", **(_card() if bench.device == "cuda" else {"name": platform.machine(), "processors": 1})}
    (weight,) = bench.weights(256, 1024, 1)
    x = torch.ones(1, 1024, dtype=torch.bfloat16, device=bench.device)
    for profile in PROFILES:
        began = time.perf_counter()
        (held,) = compressed([weight], profile, "fused")
        linear(x, held)
        bench.settle()
        yield {"what": f"`{profile}`: compress, decode, multiply", "seconds": time.perf_counter() - began}


def _card() -> dict[str, Any]:
    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "processors": found.multi_processor_count,
        "memory": found.total_memory,
        "l2": found.L2_cache_size,
        "driver": _driver(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "packages": {name: _version(name) for name in ("cuda-core", "nvidia-cuda-nvrtc", "nvidia-ml-py")},
        "tools": [name for name in ("nvcc", "ncu", "compute-sanitizer") if tools.find(name)],
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return found.group() if found else ""


SECTION = Section(
    "card",
    25,
    "Do the kernels compile and run?",
    "Seconds of the first call, in which the kernels are compiled unless a cache has them.",
    (("what", "what", ""), ("seconds", "seconds", ".1f")),
    run,
)
