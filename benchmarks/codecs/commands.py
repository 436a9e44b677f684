"""The command line against cp, and load_file against safetensors, on one large file in the page cache."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import data, environment
from benchmarks.timing import interleave, spread, timed

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION_RUNS = 20


def run(dataset: str, rounds: int) -> dict[str, Any]:
    """Rows of all that this file measures. Its large files are temporary: TMPDIR says where they go."""
    with tempfile.TemporaryDirectory(prefix="tensorwire-bench-") as name:
        folder = Path(name)
        plain, packed = folder / "plain.safetensors", folder / "packed.safetensors"
        write_safetensors(data.load(dataset), plain)
        subprocess.run([*_program(), "compress", plain, packed], check=True, capture_output=True, env=_environment())
        facts = {"dataset": dataset, "nbytes": plain.stat().st_size, "compressed_nbytes": packed.stat().st_size}
        return {
            **facts,
            "commands": _commands(folder, plain, packed, rounds),
            # In a process of its own, with the allocator as it comes.
            "loading": environment.asked(load_files, str(plain), str(packed), rounds, GLIBC_TUNABLES=""),
        }


def write_safetensors(dataset: data.Dataset, path: Path) -> None:
    """The tensors of a data set as a safetensors file."""
    header, start = {}, 0
    for name, shape, tensor in zip(dataset.names, dataset.shapes, dataset.tensors(), strict=True):
        stop = start + len(tensor)
        header[name] = {"dtype": dataset.dtype, "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(dataset.data)


def _commands(folder: Path, plain: Path, packed: Path, rounds: int) -> list[dict[str, Any]]:
    """Wall time of whole processes, each to a destination that does not exist yet."""
    target = folder / "target.safetensors"
    copy = ["cp", "--reflink=never"] if sys.platform == "linux" else ["cp"]
    lines = {
        "cp": [*copy, plain, target],
        "tensorwire compress": [*_program(), "compress", plain, target],
        "tensorwire decompress": [*_program(), "decompress", packed, target],
    }
    operations = {name: partial(_wall_seconds, line, target) for name, line in lines.items()}
    warm_up = {name: operation() for name, operation in operations.items()}
    operations["tensorwire decompress"]()
    _compare(plain, target)
    seconds = interleave(operations, warm_up, rounds, float("inf"))
    rows = [_row(name, values, seconds["cp"]) for name, values in seconds.items()]
    version = [*_program(), "--version"]
    rows.append(_row("tensorwire --version", [_wall_seconds(version, target) for _ in range(VERSION_RUNS)], None))
    return rows


def load_files(plain: str, packed: str, rounds: int) -> list[dict[str, Any]]:
    """Time from the call to the last tensor; all cores, fresh memory, the page cache warm."""
    import safetensors.numpy
    import safetensors.torch

    import tensorwire

    def cloned() -> Any:
        return {name: tensor.clone() for name, tensor in safetensors.torch.load_file(plain).items()}

    loaders: dict[str, Callable[[], Any]] = {
        "safetensors.numpy.load_file": lambda: safetensors.numpy.load_file(plain),
        "tensorwire.load_file": lambda: tensorwire.load_file(packed),
        "safetensors.torch.load_file + clone": cloned,
        "tensorwire.load_file, torch": lambda: tensorwire.load_file(packed, framework="pt"),
    }
    originals, ours = loaders["safetensors.numpy.load_file"](), loaders["tensorwire.load_file"]()
    if any(originals[name].tobytes() != ours[name].tobytes() for name in originals):
        raise RuntimeError("tensorwire.load_file gives other tensors than safetensors")
    del originals, ours
    operations = {name: lambda loader=loader: timed(loader)[0] for name, loader in loaders.items()}
    warm_up = {name: operation() for name, operation in operations.items()}
    seconds = interleave(operations, warm_up, rounds, float("inf"))
    numpy_rows = [_row(name, seconds[name], seconds["safetensors.numpy.load_file"]) for name in list(loaders)[:2]]
    return numpy_rows + [
        _row(name, seconds[name], seconds["safetensors.torch.load_file + clone"]) for name in list(loaders)[2:]
    ]


def _row(name: str, seconds: Any, baseline: Any) -> dict[str, Any]:
    """`vs_baseline`: how many times as long as the baseline, round by round."""
    ratios = None if baseline is None else spread([a / b for a, b in zip(seconds, baseline, strict=True)])
    return {"name": name, "seconds": spread(seconds), "vs_baseline": ratios}


def _wall_seconds(line: list[Any], target: Path) -> float:
    target.unlink(missing_ok=True)
    start = time.perf_counter()
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment())
    return time.perf_counter() - start


def _compare(plain: Path, target: Path) -> None:
    if subprocess.run(["cmp", "-s", plain, target], check=False).returncode:
        raise RuntimeError("tensorwire decompress did not restore the file")


def _program() -> list[str]:
    """The command as installed beside this Python, or as a module."""
    beside = Path(sys.executable).parent / "tensorwire"
    found = str(beside) if beside.is_file() else shutil.which("tensorwire")
    return [found] if found else [sys.executable, "-m", "tensorwire"]


def _environment() -> dict[str, str]:
    return environment.child(GLIBC_TUNABLES="")
