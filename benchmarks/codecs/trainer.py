"""A directory that a trainer saves, compressed as a whole: python -m benchmarks.codecs.trainer.

Transformers' own Trainer trains all-MiniLM-L6-v2 as a masked language model on the text of the standard library, and
saves the model, the states of AdamW, the scheduler and the random numbers. Each of its tensors is compressed by itself,
and then the directory; benchmarks/results/trainer.json keeps both ratios.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import tensorwire
from benchmarks.data import minilm_path
from benchmarks.results_page import keep_rows
from benchmarks.text import sentence_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 60
LENGTH = 64
BATCH = 8
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


def save(root: Path, model: Any, texts: list[list[int]], steps: int, every: int | None = None) -> Path:
    """Train a model on texts of one length, and return the directory that is saved in the end; others are saved every
    so many steps."""
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": row, "labels": row} for row in texts[: BATCH * steps]]
    arguments = TrainingArguments(
        output_dir=str(root), max_steps=steps, save_steps=every or steps, per_device_train_batch_size=BATCH,
        learning_rate=5e-5, use_cpu=True, report_to=[], seed=0, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    dataset: Any = data
    Trainer(model, arguments, train_dataset=dataset).train()
    return root / f"checkpoint-{steps}"


def tensors(root: Path) -> Iterator[torch.Tensor]:
    """All tensors of such a directory."""
    yield from tensorwire.load_file(root / "model.safetensors", framework="pt").values()
    states = torch.load(root / "optimizer.pt", weights_only=True)["state"]
    for state in states.values():
        yield from state.values()


def measure(root: Path, dtype: str) -> dict[str, Any]:
    """Sizes of a directory, and what its tensors take each by itself: a frame, or its bytes if that is not larger."""
    nbytes = taken = 0
    for tensor in tensors(root):
        nbytes += tensor.nbytes
        taken += min(tensor.nbytes, len(tensorwire.compress(tensor))) if tensor.nbytes else 0
    with tempfile.TemporaryDirectory() as place:
        report = tensorwire.compress_checkpoint(root, Path(place) / "packed")
        tensorwire.decompress_checkpoint(Path(place) / "packed", Path(place) / "restored")
    copied = {file.path: file.nbytes_in for file in report.files if file.kind == "copied"}
    before, after = report.nbytes_in, report.nbytes_out
    model = next(file for file in report.files if file.path == "model.safetensors")
    return {
        "dtype": dtype,
        "nbytes": before,
        "tensors_ratio": nbytes / taken,
        "directory_ratio": before / after,
        "share": (before / after) / (nbytes / taken),
        "model_alone_ratio": before / (before - model.nbytes_in + model.nbytes_out),
        "num_copied": len(copied),
        "copied_nbytes": sum(copied.values()),
    }


def rows(steps: int, texts: list[list[int]], model_of: Callable[[], Any]) -> list[dict[str, Any]]:
    """A row for each dtype of model and optimizer."""
    found = []
    for name, dtype in DTYPES.items():
        with tempfile.TemporaryDirectory() as place:
            found.append(measure(save(Path(place), model_of().to(dtype), texts, steps), name))
    return found


COLUMNS = (
    ("dtype", "dtype", ""), ("MB", lambda row: f"{row['nbytes'] / 1e6:.1f}"),
    ("its tensors, each by itself", "tensors_ratio", ".4f"), ("the directory", "directory_ratio", ".4f"),
    ("share", "share", ".4f"), ("with torch files copied", "model_alone_ratio", ".4f"),
)  # fmt: skip


def minilm() -> Any:
    """The model, with the head that a masked language model has."""
    from transformers import AutoModelForMaskedLM

    return AutoModelForMaskedLM.from_pretrained(minilm_path())


def tokens() -> list[list[int]]:
    """Docstrings of the standard library as the model's tokens, cut to one length."""
    from transformers import AutoTokenizer

    text = " ".join(f"{first} {rest}" for first, rest in sentence_pairs(0))
    found = AutoTokenizer.from_pretrained(minilm_path())(text, verbose=False)["input_ids"]
    return [found[start : start + LENGTH] for start in range(0, len(found) - LENGTH, LENGTH)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    steps = parser.parse_args().steps
    found = rows(steps, tokens(), minilm)
    keep_rows("trainer", "python -m benchmarks.codecs.trainer", found, COLUMNS, steps=steps)


if __name__ == "__main__":
    main()
