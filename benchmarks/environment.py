"""What the figures depend on besides the data and the code: machine, versions, date, and processes of their own."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
KEPT = (RESULTS, ROOT / "job" / "benchmarks" / "results")
"""Folders of results that are committed."""
CPU_TARGETS = ("avx512", "avx2", "neon")
PACKAGES = (
    "numpy",
    "safetensors",
    "torch",
    "triton",
    "transformers",
    "accelerate",
    "llama-cpp-python",
    "zipnn",
    "openzl",
    "zstandard",
    "blosc2",
    "pcodec",
    "lz4",
    "hdiffpatch",
    "lmzip",
    "glyd",
    "z4ai",
    "bigsmall",
)
_DIRTY = "-dirty"
# For the C library's allocator: memory that was freed is used again, and in huge pages, as ours is. Without this the
# peers that allocate their results pay for fresh pages in each call.
ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184"}


def describe(command: str, folder: Path | None) -> dict[str, Any]:
    """Facts for the results in a folder, or for none that are kept; `command` is what was run.

    Raises:
        SystemExit: as `check_commit`.
    """
    facts = {
        "command": command,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "caches": _caches(),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "load": load(),
    }
    check_commit(facts, folder)
    return facts


def check_commit(facts: dict[str, Any], folder: Path | None) -> None:
    """SystemExit where results belong to a folder of `KEPT`, and were measured on other files than their commit has:
    nobody could measure them again."""
    if folder is not None and facts["commit"].endswith(_DIRTY) and any(map(folder.resolve().is_relative_to, KEPT)):
        sys.exit(
            f"no results are written to {folder}: the files differ from commit "
            f"{facts['commit'].removesuffix(_DIRTY)} (git diff HEAD). Commit them first, or have the results left "
            "elsewhere, or printed alone, by an option that --help names"
        )


def load() -> float:
    """The load average of the last minute; a benchmark wants it near 0 when it starts."""
    return os.getloadavg()[0]


def child(**variables: str) -> dict[str, str]:
    """The environment for a process of this package, `variables` added; it finds what this one finds."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}


def asked(function: Callable[..., Any], *arguments: Any, **variables: str) -> Any:
    """What a function of a module gives in a process of its own: its crash, memory and threads end with it. Arguments
    and result are plain data."""
    module = function.__module__
    if module == "__main__":
        module = sys.modules[module].__spec__.name  # type: ignore[union-attr] # as python -m names it
    code = (  # a peer may write to the standard output, from C too
        "import json, os; answer = os.fdopen(os.dup(1), 'w'); os.dup2(2, 1)\n"
        f"from {module} import {function.__name__} as do; print(json.dumps(do(*json.loads(input()))), file=answer)"
    )
    line, given = [sys.executable, "-c", code], json.dumps(arguments).encode()
    return json.loads(
        subprocess.run(line, check=True, input=given, stdout=subprocess.PIPE, env=child(**variables)).stdout
    )


def interpreter(package: str) -> Path:
    """A Python that has a package which `make PACKAGE` installs apart from everything else: this one, or the one there,
    which may be missing."""
    here = importlib.util.find_spec(package) is not None
    return Path(sys.executable) if here else ROOT / "build" / f"{package}-env" / "bin" / "python"


def lacks(package: str) -> str:
    """Why there is no such Python; "" if there is one."""
    return "" if interpreter(package).exists() else f"{package} is missing: run make {package} first"


def printed(package: str, module: str, *arguments: str | Path) -> Any:
    """What a program of ours prints in its last line, as JSON, where that package is."""
    command = [interpreter(package), "-m", module, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=child())
    return json.loads(done.stdout.splitlines()[-1])


def on_each_target(function: Callable[..., Any], *arguments: Any, **variables: str) -> dict[str, Any]:
    """The same on each CPU target that is here, by its name."""
    which = [sys.executable, "-c", "from tensorwire.codec import cpu_target; print(cpu_target())"]
    found = {}
    for target in CPU_TARGETS:
        held = {**variables, "TENSORWIRE_CPU": target, "PYTHONWARNINGS": "ignore"}
        taken = subprocess.check_output(which, env=child(**held), text=True).strip()
        if taken == target:  # a CPU that lacks it takes another one
            found[target] = asked(function, *arguments, **held)
    return found


def folder(*, quick: bool) -> Path:
    """Where a run writes its results."""
    found = ROOT / "build" / "bench" if quick else RESULTS
    found.mkdir(parents=True, exist_ok=True)
    return found


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _commit() -> str:
    """With `_DIRTY` where files differ from it; but for results, which a run may write one after the other."""
    commit = _output("git", "describe", "--always")
    others = (f":!{folder.relative_to(ROOT)}" for folder in KEPT)
    changed = commit and _output("git", "diff", "--name-only", "HEAD", "--", ".", *others)
    return commit + _DIRTY if changed else commit


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _caches() -> str:
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = _read(index / "type")
        if kind != "Instruction":
            found.append(f"L{_read(index / 'level')} {_read(index / 'size')}")
    return ", ".join(found)


def _field(path: str, name: str) -> str:
    for line in _read(path).splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
