"""What the card is, and whether the kernels compile and run on it."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import platform
import re
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch.nn.functional import linear

import tensorwire
from benchmarks.device import tools
from benchmarks.device.measure import PROFILES, compressed
from benchmarks.device.runner import Row, Section
from benchmarks.device.sections import bits
from tensorwire.torch.device.binaries import binary
from tensorwire.torch.device.driver import Kernel
from tensorwire.torch.device.nvrtc import compiler
from tests.torch.device.every_kernel import kernels_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench


def run(bench: Bench) -> Generator[Row, None, None]:
    yield {"what": "card", **(_card() if bench.device == "cuda" else {"name": platform.machine(), "processors": 1})}
    if bench.device == "cuda":
        yield _compiled()
    (weight,) = bench.weights(256, 1024, 1)
    x = torch.ones(1, 1024, dtype=torch.bfloat16, device=bench.device)
    for profile in PROFILES:
        began = time.perf_counter()
        (held,) = compressed([weight], profile, "fused")
        linear(x, held)
        bench.settle()
        yield {"what": f"`{profile}`: compress, decode, multiply", "seconds": time.perf_counter() - began}


def _compiled() -> Row:
    """Compile what is measured, on all cores: a process for each, as NVRTC compiles one kernel at a time. They put it
    where compiled kernels are kept."""
    began = time.perf_counter()
    try:
        found = compiler(torch.version.cuda)
    except OSError as error:
        return {"what": "NVRTC", "error": str(error)}
    major, minor = torch.cuda.get_device_capability()
    frames = (tensorwire.compress(each, profile=profile) for each in bits.tensors().values() for profile in PROFILES)
    kernels = kernels_of(map(bytes, frames))
    for eights, two in itertools.product((1, 2, 4, 8), ("false", "true")):
        kernels.append(Kernel("thin.cuh", f"thin<{eights}, {two}>"))
        kinds = ("Bf16, 2", "F16, 2", "F16, 3")  # layouts, and widths of tier 1 that profiles make
        kernels += [Kernel("thin_cascade.cuh", f"thin_cascade<{kind}, {eights}, {two}>") for kind in kinds]
    if major == 9:
        kernels += [
            Kernel("wgmma.cuh", f"wgmma<{eights}, {two}>", "a") for eights in (4, 6, 8) for two in ("false", "true")
        ]
    pool = multiprocessing.get_context("fork").Pool(os.cpu_count())
    with pool:
        pool.map(functools.partial(_compile, 10 * major + minor), kernels, chunksize=1)
    version = ".".join(map(str, found.version))
    what = f"{len(kernels)} kernels in CUDA C++, by NVRTC {version}"
    return {"what": what, "seconds": time.perf_counter() - began}


def _compile(architecture: int, kernel: Kernel) -> None:
    binary(kernel, architecture, compiler(torch.version.cuda))


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
    30,
    "Do the kernels compile and run?",
    "Seconds to compile, and of the first call.",
    (("what", "what", ""), ("seconds", "seconds", ".1f"), ("error", "error", "")),
    run,
)
