"""Directories that hold tensors more than once, and checkpoints of one training; lmzip in the same run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorwire
from benchmarks.codecs import trainer
from benchmarks.data import minilm_path
from benchmarks.tables import Row, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS, EVERY = 24, 8
QUICK_STEPS = 3
OURS, CHAIN, COMPACT, RIVAL = "tensorwire", "--chain", "--profile compact", "lmzip"
Codec = tuple["Callable[[Path, Path], Any]", "Callable[[Path, Path], Any]"]


def ours(**options: Any) -> Codec:
    return (
        lambda src, dst: tensorwire.compress_checkpoint(src, dst, **options),
        tensorwire.decompress_checkpoint,
    )


def lmz(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "lmz", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def rivals() -> dict[str, Codec]:
    """lmzip with its own defaults, where it is installed."""
    if find_spec("lmz") is None:
        return {}
    return {
        RIVAL: (lambda src, dst: lmz("compress", "-q", src, dst), lambda src, dst: lmz("decompress", "-q", src, dst))
    }


def nbytes(path: Path) -> int:
    """Of a file, or of all files of a directory."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())


def digests(root: Path) -> dict[str, str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def rows(src: Path, codecs: dict[str, Codec]) -> Iterator[Row]:
    """Every one compresses the directory and restores it."""
    expected, before = digests(src), nbytes(src)
    for name, (compress, restore) in codecs.items():
        with tempfile.TemporaryDirectory() as place:
            small, back = Path(place, "small"), Path(place, "back")
            times = []
            for work, source, target in ((compress, src, small), (restore, small, back)):
                started = time.perf_counter()
                work(source, target)
                times.append(time.perf_counter() - started)
            found = digests(back / src.name if (back / src.name).is_dir() else back)
            after = nbytes(small)
        yield {
            "with": name, "nbytes": before, "stored": after, "ratio": before / after, "same": found == expected,
            "compress": times[0], "restore": times[1],
        }  # fmt: skip


def write_hub(root: Path) -> None:
    """The real model in BF16 as hubs have it: a safetensors file, and a file of torch.save of the same weights."""
    import safetensors.torch
    import torch

    weights = safetensors.torch.load_file(minilm_path() / "model.safetensors")
    weights = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    root.mkdir()
    safetensors.torch.save_file(weights, root / "model.safetensors", {"format": "pt"})
    torch.save(weights, root / "pytorch_model.bin")
    (root / "config.json").write_bytes((minilm_path() / "config.json").read_bytes())


def measure_hub(quick: bool) -> list[Row]:
    del quick  # it takes seconds
    with tempfile.TemporaryDirectory() as place:
        src = Path(place, "hub")
        write_hub(src)
        return list(rows(src, {OURS: ours(), COMPACT: ours(profile="compact"), **rivals()}))


def measure_run(quick: bool) -> list[Row]:
    import torch

    steps = QUICK_STEPS if quick else STEPS
    with tempfile.TemporaryDirectory() as place:
        src = Path(place, "run")
        model = trainer.minilm().to(torch.bfloat16)
        trainer.save(src, model, trainer.tokens(), steps, steps // 3)
        codecs = {OURS: ours(), CHAIN: ours(chain=True), f"{CHAIN} {COMPACT}": ours(chain=True, profile="compact")}
        return list(rows(src, {**codecs, **rivals()}))


COLUMNS = (
    ("with", "with", ""), ("bytes", "nbytes", ",d"), ("stored", "stored", ",d"), ("ratio", "ratio", ".3f"),
    ("compress, s", "compress", ".2f"), ("restore, s", "restore", ".2f"), ("every byte is back", "same", ""),
)  # fmt: skip
HUB = Table(
    "hub",
    "A directory with safetensors and a file of torch.save of the same weights",
    "all-MiniLM-L6-v2 in BF16. Each stores the directory and restores it; seconds are of one run, with all that it "
    "writes. lmzip is a command, so the start of Python is in its seconds.",
    COLUMNS,
    measure_hub,
)
RUN = Table(
    "chain",
    "Three checkpoints of one training",
    f"Transformers' Trainer trains all-MiniLM-L6-v2 in BF16 with AdamW for {STEPS} steps, and saves model, optimizer, "
    f"scheduler and random numbers every {EVERY} steps. The optimizer has two thirds of the bytes.",
    COLUMNS,
    measure_run,
)
TABLES = (HUB, RUN)
