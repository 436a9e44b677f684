"""A run of Transformers' Trainer whose checkpoints compress themselves: bytes on disk, losses after kills.

``python -m benchmarks.checkpoints.training SETTINGS`` is one process of it, which the benchmark starts and kills.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import tensorwire
from benchmarks import environment
from benchmarks.checkpoints.ranks import bound_bits
from benchmarks.data import entropy
from benchmarks.tables import Row, Table
from benchmarks.text import library_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

CHECKPOINTS = 12
FULL: dict[str, Any] = {"layers": 4, "width": 128, "batch": 2, "every": 20}
QUICK = {"layers": 1, "width": 64, "batch": 2, "every": 2}
LENGTH = 64
RATE = 1e-3
ANCHOR_EVERY = 8
DTYPES = ("bfloat16", "float32")
KINDS = {"exp_avg": "AdamW's mean of gradients", "exp_avg_sq": "AdamW's mean of squares", "weight": "weights"}
DENSE, ALONE, OURS, BOUND = "dense", "each alone", "callback", "entropy bound"
BITS = {torch.bfloat16: (7, np.uint16), torch.float32: (23, np.uint32)}


# The process that trains ----------------------------------------------------------------------------------------------


def train(settings: dict[str, Any]) -> None:
    """Train from the newest checkpoint on, and write each loss to a file as it comes."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    from tensorwire.torch.integrations.trainer import TensorwireCallback

    losses = Path(settings["losses"])

    class Losses(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **options: Any) -> None:
            if "loss" in logs:
                with losses.open("a") as file:
                    file.write(f"{state.global_step} {float(logs['loss']).hex()}\n")

    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, steps = settings["width"], settings["every"] * CHECKPOINTS
    config = LlamaConfig(
        vocab_size=256, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=settings["layers"],
        num_attention_heads=4, max_position_embeddings=LENGTH, tie_word_embeddings=False, attention_dropout=0.1,
    )  # fmt: skip
    text = library_bytes(validation=False)
    rows = [list(text[start * LENGTH :][:LENGTH]) for start in range(settings["batch"] * steps)]
    data: Any = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        output_dir=settings["folder"], max_steps=steps, save_steps=settings["every"], logging_steps=1, report_to=[],
        per_device_train_batch_size=settings["batch"], learning_rate=RATE, use_cpu=True, disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    callbacks: list[TrainerCallback] = [Losses()]
    resume_from = None
    model = LlamaForCausalLM(config).to(getattr(torch, settings["dtype"]))
    if settings["compressed"]:
        callbacks.append(TensorwireCallback(anchor_every=ANCHOR_EVERY, threads=1))
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=callbacks)
    if settings["compressed"]:
        resume_from = callbacks[-1].restore()
    trainer.train(resume_from_checkpoint=resume_from)


# The process that starts and kills it ---------------------------------------------------------------------------------


def run(folder: Path, settings: dict[str, Any], *, compressed: bool) -> tuple[dict[int, set[str]], int]:
    """Every loss that was ever computed, by step, and how often the process was killed. Only the compressed run is."""
    losses, errors = folder.with_suffix(".losses"), folder.with_suffix(".errors")
    settings = settings | {"folder": str(folder), "losses": str(losses), "compressed": compressed}
    every = settings["every"]
    moments: list[Callable[[], bool]] = []
    if compressed:
        moments = [
            lambda: any(folder.glob(f".checkpoint-{3 * every}.tensorwire*")),  # while it compresses
            lambda: _is_half_saved(folder / f"checkpoint-{6 * every}"),  # while Trainer saves
            lambda: _last_step(losses) > 9 * every,  # while it trains
        ]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.checkpoints.training", json.dumps(settings)]
    num_kills = 0
    while True:
        with errors.open("w") as file:
            process = subprocess.Popen(command, cwd=environment.ROOT, stdout=subprocess.DEVNULL, stderr=file)
        while process.poll() is None:
            if num_kills < len(moments) and moments[num_kills]():
                process.send_signal(signal.SIGKILL)
                num_kills += 1
                break
            time.sleep(0.002)
        if process.wait() == 0:
            break
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(errors.read_text()[-2000:])
    found: dict[int, set[str]] = {}
    for step, loss in map(str.split, losses.read_text().splitlines()):
        found.setdefault(int(step), set()).add(loss)
    return found, num_kills


def _is_half_saved(checkpoint: Path) -> bool:
    return (checkpoint / "model.safetensors").exists() and not (checkpoint / "trainer_state.json").exists()


def _last_step(losses: Path) -> int:
    lines = losses.read_text().splitlines() if losses.exists() else []
    return int(lines[-1].split()[0]) if lines else 0


# What is measured -----------------------------------------------------------------------------------------------------


def checkpoints(folder: Path) -> list[Path]:
    """The oldest first."""
    return sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))


def tensors(checkpoint: Path) -> Iterator[tuple[str, str, Tensor]]:
    """(name, kind, tensor) of the large tensors of a dense checkpoint."""
    for name, tensor in tensorwire.load_file(checkpoint / "model.safetensors", framework="pt").items():
        yield name, "weight", tensor
    states = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    for number, state in states.items():
        for kind, tensor in state.items():
            if kind in KINDS:
                yield f"{number}.{kind}", kind, tensor


def relative_bits(tensor: Tensor, base: Tensor) -> float:
    """What a tensor needs at least if the decoder knows `base`: the entropy of sign and length of each step, given the
    exponent of the base's word, and the bits of the step below its first one."""
    mantissa, word = BITS[tensor.dtype]
    new, old = (each.contiguous().view(-1).view(torch.uint8).numpy().view(word) for each in (tensor, base))
    top = word(1 << (8 * new.itemsize - 1))
    mapped = [np.where(each & top, ~each, each | top).astype(np.int64) for each in (new, old)]
    steps = mapped[0] - mapped[1]
    lengths = np.frexp(np.abs(steps).astype(np.float64))[1].astype(np.int64)
    classes = 2 * lengths + (steps < 0)
    exponents = (old >> mantissa & 0xFF).astype(np.int64)
    together = np.bincount(exponents * 128 + classes)
    return entropy(together) - entropy(np.bincount(exponents)) + float(np.maximum(lengths - 1, 0).sum())


@cache
def dense_run(dtype: str, quick: bool) -> tuple[tempfile.TemporaryDirectory[str], dict[int, set[str]]]:
    """Dense checkpoints, which both tables look at, and their losses."""
    place = tempfile.TemporaryDirectory()
    losses, _ = run(Path(place.name) / DENSE, (QUICK if quick else FULL) | {"dtype": dtype}, compressed=False)
    return place, losses


def measure_run(quick: bool) -> list[Row]:
    rows = []
    for dtype in DTYPES:
        folder, expected = dense_run(dtype, quick)
        with tempfile.TemporaryDirectory() as place:
            dense, ours = Path(folder.name) / DENSE, Path(place) / OURS
            found, num_kills = run(ours, (QUICK if quick else FULL) | {"dtype": dtype}, compressed=True)
            nbytes = _nbytes(dense)
            sizes = {DENSE: nbytes, ALONE: _alone(dense), OURS: _nbytes(ours), BOUND: _bound(dense)}
            told = {OURS: {"kills": num_kills, "same": found == expected}}
            for form, size in sizes.items():
                rows.append(
                    {"dtype": dtype, "form": form, "nbytes": size, "of dense": size / nbytes, **told.get(form, {})}
                )
    return rows


def measure_kinds(quick: bool) -> list[Row]:
    rows = []
    for dtype in DTYPES:
        found = kinds(Path(dense_run(dtype, quick)[0].name) / DENSE)
        rows += [{"dtype": dtype, "kind": KINDS[kind], **sizes} for kind, sizes in found.items()]
    return rows


def kinds(dense: Path) -> dict[str, dict[str, float]]:
    """By the kind of a tensor: parts of the dense bytes, plain and relative to the next checkpoint."""
    found = {kind: dict.fromkeys(("nbytes", "plain", "relative", "bound"), 0.0) for kind in sorted(KINDS)}
    for old, new in pairwise(checkpoints(dense)):
        newer = {name: tensor for name, _, tensor in tensors(new)}
        for name, kind, tensor in tensors(old):
            sums = found[kind]
            sums["nbytes"] += tensor.nbytes
            sums["plain"] += len(tensorwire.compress(tensor))
            sums["relative"] += len(tensorwire.compress(tensor, base=newer[name]))
            sums["bound"] += min(bound_bits(tensor), relative_bits(tensor, newer[name])) / 8
    return {
        kind: {name: size / sums["nbytes"] for name, size in sums.items() if name != "nbytes"}
        for kind, sums in found.items()
    }


def _alone(dense: Path) -> int:
    """Bytes of all checkpoints, each compressed by itself."""
    with tempfile.TemporaryDirectory() as place:
        return sum(
            tensorwire.compress_checkpoint(path, Path(place) / path.name).nbytes_out for path in checkpoints(dense)
        )


def _bound(dense: Path) -> float:
    """Bytes of the tensors of all checkpoints: of the newest by itself, of each other one by itself or as a change of
    the next newer one, whichever is less. What is not a tensor takes nothing."""
    found = checkpoints(dense)
    bits = sum(bound_bits(tensor) for _, _, tensor in tensors(found[-1]))
    for old, new in pairwise(found):
        newer = {name: tensor for name, _, tensor in tensors(new)}
        bits += sum(min(bound_bits(tensor), relative_bits(tensor, newer[name])) for name, _, tensor in tensors(old))
    return bits / 8


def _nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


_MODEL = (
    f"Transformers' Trainer trains a Llama of {FULL['layers']} layers and width {FULL['width']} on the bytes of the "
    f"standard library, with AdamW at {RATE:g} and its own schedule; weights and states have one dtype. It saves "
    f"{CHECKPOINTS} checkpoints, {FULL['every']} steps apart."
)
RUN = Table(
    "run",
    "A training whose checkpoints compress themselves",
    f"{_MODEL} The callback's run is killed three times: while it compresses, while Trainer saves, and between two "
    f"saves. It resumes from the newest checkpoint. One of {ANCHOR_EVERY} checkpoints stands alone. *Equal losses*: "
    "all losses that its processes computed have the bits of the dense run's. The bound is the entropy of exponents "
    "and all other bits; or that of sign and length of each step, given the exponent of the base, and the bits of the "
    "step: for each tensor whichever is less.",
    (
        ("dtype", "dtype", ""), ("checkpoints", "form", ""), ("bytes", "nbytes", ",.0f"),
        ("of dense", "of dense", ".3f"), ("kills", "kills", "d"), ("equal losses", "same", ""),
    ),
    measure_run,
)  # fmt: skip
KINDS_TABLE = Table(
    "kinds",
    "What each kind of tensor gains from a base",
    f"{_MODEL} Each tensor is compressed by itself, and relative to the one of the next checkpoint; a frame takes for "
    "each block what is smaller. Parts of the dense bytes:",
    (
        ("dtype", "dtype", ""), ("tensors", "kind", ""), ("plain", "plain", ".3f"), ("relative", "relative", ".3f"),
        ("bound", "bound", ".3f"),
    ),
    measure_kinds,
)  # fmt: skip
TABLES = (RUN, KINDS_TABLE)

if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    train(json.loads(sys.argv[1]))
