"""L-GreCo's bits for each tensor, within the error of 4 bits for all of them, on real gradients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import gpt
from benchmarks.environment import log
from benchmarks.tables import Row, Table
from benchmarks.traffic.masters import Training
from tensorwire.torch.traffic import Budget, Grid
from tensorwire.torch.traffic.budget import fewest_bytes

if TYPE_CHECKING:
    from torch import Tensor

STEPS, PEAK = (100, 200), 3e-4
BITS = (2, 3, 4, 5, 6, 8)
TENSORS, CANDIDATES = 200, 7


def measure(quick: bool) -> list[Row]:
    rows, training = [], Training()
    looks = (2,) if quick else STEPS
    for step in range(1, max(looks) + 1):
        training.step(step, gpt.rate_at(step, PEAK))
        if step in looks:
            log(f"budget at step {step}")
            matrices = {name: each for name, each in training.gradients.items() if each.dim() == 2}
            rows += [_row(step, matrices, block) for block in (0, 32)]
    return [*rows, _speed()]


def _row(step: int, gradients: dict[str, Tensor], hadamard: int) -> Row:
    budget = Budget(Grid(4, 128, hadamard=hadamard), BITS)
    for name, gradient in gradients.items():
        budget.observe(name, gradient)
    found = budget._found
    errors, sizes = (np.array([found[name][i] for name in gradients]) for i in (0, 1))
    default = budget.bits.index(4)
    chosen = fewest_bytes(errors, sizes, default)
    norms = fewest_bytes(np.sqrt(errors), sizes, default)
    # As many tensors have each number of bits, and others have them.
    ignorant = chosen[::-1]
    return {
        "what": f"step {step}" + (", Hadamard 32" if hadamard else ""),
        "times": _sum(sizes, [default] * len(sizes)) / _sum(sizes, chosen),
        "error": _of_default(errors, chosen, default),
        "norms": _of_default(errors, norms, default),
        "ignorant": _of_default(errors, ignorant, default),
    }


def _of_default(errors: np.ndarray, chosen: list[int], default: int) -> float:
    """The L2 error of all tensors as a part of that of the default."""
    return float((_sum(errors, chosen) / errors[:, default].sum()) ** 0.5)


def _sum(table: np.ndarray, chosen: list[int]) -> float:
    return float(sum(table[row, column] for row, column in enumerate(chosen)))


def _speed() -> Row:
    generator = np.random.default_rng(0)
    scales = generator.lognormal(size=(TENSORS, 1))
    errors, sizes = scales * 4.0 ** -np.arange(CANDIDATES), np.tile(np.arange(2, 2 + CANDIDATES), (TENSORS, 1))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        fewest_bytes(errors, sizes, 2)
        times.append(time.perf_counter() - began)
    return {"what": f"{TENSORS} tensors, {CANDIDATES} candidates", "milliseconds": 1000 * min(times)}


TABLE = Table(
    "budget",
    "Bits by tensor within a budget of error",
    "`Budget` on the gradients of the matrices of the model of the first table: the bytes of 4 bits for all as so many "
    "times its own, and its L2 error as a part of theirs. Contrasts: a budget of norms in place of squares, and the "
    "same numbers of bits given to other tensors.",
    (
        ("what", "what", ""), ("times fewer bytes", "times", ".3f"), ("error", "error", ".3f"),
        ("error, budget of norms", "norms", ".3f"), ("error, other tensors", "ignorant", ".3f"),
        ("milliseconds", "milliseconds", ".1f"),
    ),
    measure,
)  # fmt: skip
