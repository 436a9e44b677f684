"""Directories that hold tensors more than once, and checkpoints of one training; lmzip in the same run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorwire
from benchmarks import gpt
from benchmarks.data import minilm_path
from benchmarks.tables import Row, Table
from tests.support.checkpoint_models import tree_hashes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS, EVERY = 9, 3
LAYERS, WIDTH, ROWS, LEARNING_RATE = 3, 192, 8, 1e-4
TUNED_WARM_UP, TUNED_EVERY, TUNED_RATE = 12, 12, 2e-5
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
    """The size of a file, or of all files of a directory."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())


def rows(src: Path, codecs: dict[str, Codec]) -> Iterator[Row]:
    """Every one compresses the directory and restores it."""
    expected, before = tree_hashes(src), nbytes(src)
    for name, (compress, restore) in codecs.items():
        with tempfile.TemporaryDirectory() as place:
            small, back = Path(place, "small"), Path(place, "back")
            times = []
            for work, source, target in ((compress, src, small), (restore, small, back)):
                started = time.perf_counter()
                work(source, target)
                times.append(time.perf_counter() - started)
            found = tree_hashes(back / src.name if (back / src.name).is_dir() else back)
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


def write_run(root: Path, steps: int, every: int) -> None:
    """Train a small language model in BF16 with AdamW, and save model and optimizer every so many steps."""
    import safetensors.torch
    import torch

    model = gpt.GPT(LAYERS, WIDTH).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(gpt.batch(step, ROWS)).backward()
        optimizer.step()
        if step % every == 0:
            folder = root / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors")
            torch.save(optimizer.state_dict(), folder / "optimizer.pt")


def measure_run(quick: bool) -> list[Row]:
    steps, every = (3, 1) if quick else (STEPS, EVERY)
    return measure_chain(lambda root: write_run(root, steps, every))


def write_tuned(root: Path, warm_up: int, every: int) -> None:
    """Fine-tune the real model from FP32 master weights, and save their BF16 copies three times."""
    import ml_dtypes
    import safetensors.numpy

    from benchmarks.trained_pairs import Settings, Training

    training = Training(Settings(warm_up=warm_up, steps=3 * every))
    for step in range(1, warm_up + 3 * every + 1):
        training.step(TUNED_RATE * min(1, step / (warm_up + 1)))
        if step > warm_up and (step - warm_up) % every == 0:
            weights = {name: words.view(ml_dtypes.bfloat16) for name, words in training.checkpoint().items()}
            folder = root / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            safetensors.numpy.save_file(weights, folder / "model.safetensors")


def measure_tuned(quick: bool) -> list[Row]:
    warm_up, every = (0, 1) if quick else (TUNED_WARM_UP, TUNED_EVERY)
    return measure_chain(lambda root: write_tuned(root, warm_up, every))


def measure_chain(write: Callable[[Path], None]) -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        src = Path(place, "run")
        write(src)
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
    "Three checkpoints of one training, with its optimizer",
    f"A language model of {LAYERS} layers of width {WIDTH} trains in BF16 on the sources of Python's standard library. "
    f"Model and optimizer are saved every {EVERY} of {STEPS} steps of AdamW at {LEARNING_RATE:g}. The optimizer has "
    "two thirds of the bytes. Columns are those of the table above.",
    COLUMNS,
    measure_run,
)
TUNED = Table(
    "tuned",
    "Three checkpoints of a fine-tune",
    f"all-MiniLM-L6-v2 learns from pairs of sentences, with FP32 master weights and AdamW at {TUNED_RATE:g}. Its BF16 "
    f"weights are saved every {TUNED_EVERY} steps, after {TUNED_WARM_UP} of warm-up; the optimizer is not. Columns are "
    "those of the first table.",
    COLUMNS,
    measure_tuned,
)
TABLES = (HUB, RUN, TUNED)
