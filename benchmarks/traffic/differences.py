"""Exact differences: how many bits a weight takes in the all-gather, by learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks import gpt
from benchmarks.data import entropy
from benchmarks.environment import log
from benchmarks.tables import Row, Table
from benchmarks.traffic.masters import Training, Weights, layer_names, outer_names, shards
from tensorwire.codec import compress

if TYPE_CHECKING:
    from torch import Tensor

RANKS = 4
FLAT = {1e-3: (5, 50, 100, 150), 3e-4: (50, 100, 200), 1e-4: (50, 75, 100)}
TAIL_PEAK, TAIL, TAIL_STEPS = 3e-4, (200, 300), (250, 300)


def measure(quick: bool) -> list[Row]:
    if quick:
        return _run(1e-3, (5,), None)
    rows = [row for rate, steps in FLAT.items() for row in _run(rate, steps, None)]
    return rows + _run(TAIL_PEAK, TAIL_STEPS, TAIL)


def _run(peak: float, steps: tuple[int, ...], tail: tuple[int, int] | None) -> list[Row]:
    log(f"differences at a peak rate of {peak:g}")
    training, rows = Training(), []
    older = old = training.copies()
    for step in range(1, max(steps) + 1):
        rate = gpt.rate_at(step, peak, tail)
        training.step(step, rate)
        new = training.copies()
        if step in steps:
            facts = {"peak": peak, "schedule": "cosine tail" if tail else "flat", "step": step, "rate": rate}
            rows += [facts | row for row in _sizes(older, old, new)]
        older, old = old, new
    return rows


def _sizes(older: Weights, old: Weights, new: Weights) -> list[Row]:
    layers = [name for names in layer_names(new) for name in names]
    groups = {"layers": layer_names(new), "embedding and head": [outer_names(new)]}
    assert len(layers) + len(groups["embedding and head"][0]) == len(new)
    return [{"weights": what} | of_modules(older, old, new, modules) for what, modules in groups.items()]


def of_modules(older: Weights, old: Weights, new: Weights, modules: list[list[str]]) -> Row:
    """Bits a weight, over the shards that ranks send of each module."""
    states = [[part for names in modules for part in shards(state, names, RANKS)] for state in (older, old, new)]
    words = sum(part.numel() for part in states[2])
    bases = {"plain": [None] * len(states[2]), "relative": states[1], "too old": states[0]}
    bits = {
        f"{kind} {profile}": 8 * sum(len(compress(part, base=base, profile=profile)) for part, base in pairs) / words
        for kind, found in bases.items()
        for pairs in [list(zip(states[2], found, strict=True))]
        for profile in ("fast", "compact")
    }
    whole = [torch.cat(parts) for parts in states[1:]]
    change = (whole[1].float() - whole[0].float()).norm() / whole[0].float().norm()
    given, alone = _bounds(*whole)
    return {
        "changed": float((_ordered(whole[0]) != _ordered(whole[1])).mean()),
        "change": float(change),
        **bits,
        "bound": given / words,
        "bound without the exponent": alone / words,
        "times": 16 / bits["relative fast"],
    }


def _bounds(old: Tensor, new: Tensor) -> tuple[float, float]:
    """Entropy of the steps between neighbouring values, in bits: given the exponent of the base, and without it."""
    steps = _ordered(new) - _ordered(old)
    exponents = (_bits(old) >> 7) & 0xFF
    given = sum(entropy(np.unique(steps[exponents == each], return_counts=True)[1]) for each in np.unique(exponents))
    return given, entropy(np.unique(steps, return_counts=True)[1])


def _bits(weights: Tensor) -> np.ndarray:
    return weights.contiguous().view(torch.int16).numpy().view(np.uint16).astype(np.int32)


def _ordered(weights: Tensor) -> np.ndarray:
    """Integers in the order of the values; neighbouring values have neighbouring ones."""
    bits = _bits(weights)
    return np.where(bits & 0x8000, -(bits & 0x7FFF), bits)


TABLE = Table(
    "differences",
    "Exact differences by learning rate",
    "Bits a weight of a model with 2 layers of width 256, trained on the bytes of Python's standard library: FP32 "
    "masters, BF16 copies, AdamW, a warm-up of 50 steps. The frames are those of the shards that 4 ranks send. `times` "
    "compares relative `fast`, which the traffic takes by default, with BF16. A base is too old if it is that of two "
    "steps ago. The bound is the entropy of the steps between neighbouring values, given the exponent of the base.",
    (
        ("weights", "weights", ""), ("schedule", "schedule", ""), ("step", "step", "d"), ("rate", "rate", ".3g"),
        ("changed", "changed", ".1%"), ("change/weights", "change", ".5f"), ("plain `fast`", "plain fast", ".2f"),
        ("plain `compact`", "plain compact", ".2f"), ("relative `fast`", "relative fast", ".2f"),
        ("relative `compact`", "relative compact", ".2f"), ("too old, `fast`", "too old fast", ".2f"),
        ("bound", "bound", ".2f"), ("bound without the exponent", "bound without the exponent", ".2f"),
        ("times", "times", ".2f"),
    ),
    measure,
)  # fmt: skip
