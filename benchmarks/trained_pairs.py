"""Pairs of BF16 checkpoints from a real training run of all-MiniLM-L6-v2: python -m benchmarks.trained_pairs.

The run is supervised and short. It keeps FP32 master weights, computes with their BF16 copies, and updates the masters
with AdamW, as mixed-precision training does. Seeds are fixed and one thread computes; other processors and versions of
PyTorch still round differently, so that figures move in the third digit.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.data import minilm_path
from benchmarks.environment import ROOT
from benchmarks.minilm_loss import contrastive_loss
from benchmarks.text import sentence_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

Checkpoint = dict[str, np.ndarray]
"""BF16 tensors by name, as uint16."""
RUNS = ROOT / "build" / "deltas"
FAR_RATE, FAR_WARM_UP = 1e-4, 4


@dataclass(frozen=True)
class Settings:
    """The run that makes the pairs.

    Attributes:
        warm_up: steps before the branches, with a learning rate that grows to `warm_up_rate`.
        steps: of each branch; all start from the same state and see the same batches.
        rates: the learning rate of each branch.
        far_steps: after how many steps at FAR_RATE the model is compared with the published one.
        batch, tokens: pairs of sentences in a batch, and tokens that are kept of each sentence.
    """

    warm_up: int = 40
    warm_up_rate: float = 5e-6
    steps: int = 12
    rates: tuple[float, ...] = (1e-6, 5e-6, 2e-5)
    far_steps: tuple[int, ...] = (4, 24)
    batch: int = 12
    tokens: int = 48
    seed: int = 20


@dataclass(frozen=True)
class Pair:
    """Two states of one model.

    Attributes:
        name: the learning rate of the step between them, or "far" and how many steps there are.
        old, new: the checkpoints; same names, same shapes.
    """

    name: str
    old: Checkpoint
    new: Checkpoint

    def matrices(self) -> list[str]:
        """Names of the encoder's matrices: they hold nearly all weights that each step can change."""
        return [name for name in self.old if name.startswith("encoder.") and self.old[name].ndim == 2]

    def changed(self) -> float:
        """The share of the words of the matrices that differ."""
        words = changed = 0
        for name in self.matrices():
            words += self.old[name].size
            changed += np.count_nonzero(self.old[name] != self.new[name])
        return changed / words


class Training:
    """A model, its optimizer and the batches."""

    def __init__(self, settings: Settings) -> None:
        from safetensors.torch import load_file

        self._settings = settings
        loaded = load_file(minilm_path() / "model.safetensors")
        self.masters = {name: tensor for name, tensor in loaded.items() if tensor.dtype == torch.float32}
        for master in self.masters.values():
            master.requires_grad_()
        self._optimizer = torch.optim.AdamW(self.masters.values(), betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
        self._batches = _batches(settings)
        self._step = 0

    def step(self, rate: float) -> None:
        """One update at the learning rate `rate`."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        # Straight through: the loss sees the rounded weights, and their gradients are those of the masters.
        rounded = {name: master + (_rounded(master) - master).detach() for name, master in self.masters.items()}
        contrastive_loss(rounded, *self._batches[self._step]).backward()
        torch.nn.utils.clip_grad_norm_(self.masters.values(), 1.0)
        self._optimizer.step()
        self._step += 1

    def checkpoint(self) -> Checkpoint:
        """The BF16 copies of the weights."""
        return {
            name: master.detach().bfloat16().view(torch.int16).numpy().view(np.uint16).copy()
            for name, master in self.masters.items()
        }

    def state(self) -> Any:
        """All that `restore` needs to go on from here."""
        masters = {name: master.detach().clone() for name, master in self.masters.items()}
        return masters, copy.deepcopy(self._optimizer.state_dict()), self._step

    def restore(self, state: Any) -> None:
        masters, optimizer, self._step = state
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(masters[name])
        self._optimizer.load_state_dict(copy.deepcopy(optimizer))


def near_pairs(settings: Settings) -> Iterator[Pair]:
    """The last step of each branch."""
    training = Training(settings)
    for step in range(settings.warm_up):
        training.step(settings.warm_up_rate * (step + 1) / settings.warm_up)
    start = training.state()
    for rate in settings.rates:
        training.restore(start)
        for _ in range(settings.steps - 1):
            training.step(rate)
        old = training.checkpoint()
        training.step(rate)
        yield Pair(rate_name(rate), old, training.checkpoint())


def far_pairs(settings: Settings) -> Iterator[Pair]:
    """The published model against what steps at a high learning rate make of it."""
    training = Training(settings)
    old = training.checkpoint()
    for step in range(1, max(settings.far_steps) + 1):
        training.step(FAR_RATE * min(1, step / FAR_WARM_UP))
        if step in settings.far_steps:
            yield Pair(f"far{step}", old, training.checkpoint())


def pair(name: str, settings: Settings = Settings()) -> Pair:
    """A pair by its name. The first call trains all of them; those that follow read build/."""
    path = _folder(settings) / f"{name}.npz"
    if not path.exists():
        _train(settings, path.parent)
    return _read(path)


def rate_name(rate: float) -> str:
    """1e-6 for 0.000001."""
    digits, _, exponent = f"{rate:.0e}".partition("e")
    return f"{digits}e{int(exponent)}"


def _train(settings: Settings, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for trained in itertools.chain(near_pairs(settings), far_pairs(settings)):
            _write(trained, folder / f"{trained.name}.npz")
    finally:
        torch.set_num_threads(threads)


def _write(trained: Pair, path: Path) -> None:
    sides = {"old": trained.old, "new": trained.new}
    arrays = {f"{side}:{name}": array for side, arrays in sides.items() for name, array in arrays.items()}
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **arrays)
    partial.replace(path)


def _read(path: Path) -> Pair:
    sides: dict[str, Checkpoint] = {"old": {}, "new": {}}
    with np.load(path) as file:
        for key in file.files:
            side, _, name = key.partition(":")
            sides[side][name] = file[key]
    return Pair(path.stem, **sides)


def _folder(settings: Settings) -> Path:
    """Another one wherever the pairs would be others."""
    facts = repr((settings, FAR_RATE, FAR_WARM_UP, torch.__version__, sys.version))
    return RUNS / hashlib.sha256(facts.encode()).hexdigest()[:16]


def _rounded(master: Tensor) -> Tensor:
    return master.bfloat16().float()


def _batches(settings: Settings) -> list[tuple[Tensor, Tensor]]:
    """Token numbers of first sentences and of rests, for all steps of a run."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm_path() / "tokenizer.json"))
    tokenizer.enable_truncation(settings.tokens)
    tokenizer.enable_padding(length=settings.tokens)
    texts = sentence_pairs(settings.seed)
    count = max(settings.warm_up + settings.steps, *settings.far_steps)
    batches = []
    for index in range(count):
        chosen = [texts[(index * settings.batch + row) % len(texts)] for row in range(settings.batch)]
        sides = ([item.ids for item in tokenizer.encode_batch(list(side))] for side in zip(*chosen, strict=True))
        first, second = map(torch.tensor, sides)
        batches.append((first, second))
    return batches


def main() -> None:
    settings = Settings()
    for name in (*map(rate_name, settings.rates), *(f"far{steps}" for steps in settings.far_steps)):
        print(f"{name}: {pair(name).changed():.4%} of the words of matrices changed")


if __name__ == "__main__":
    main()
