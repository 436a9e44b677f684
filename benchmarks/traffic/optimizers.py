"""Exact differences under several optimizers: bits a weight, and the rule that foretells them."""

from __future__ import annotations

from functools import partial
from math import log2
from typing import TYPE_CHECKING, Any

from torch.optim import SGD, Adafactor, AdamW, Muon

from benchmarks import gpt
from benchmarks.environment import log
from benchmarks.tables import Row, Table
from benchmarks.traffic.differences import of_modules
from benchmarks.traffic.masters import Training, layer_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

STEPS = 100


def _muon(parameters: Iterable[Tensor]) -> Muon:
    """It takes matrices alone. Norms stay as they are."""
    return Muon([each for each in parameters if each.dim() == 2])


# By name: the optimizer, and its rates. With so large an eps gradients count for nothing, and weight decay is left.
OPTIMIZERS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "AdamW": (gpt.optimizer_of, (3e-3, 3e-4)),
    "SGD, momentum 0.9": (partial(SGD, momentum=0.9), (0.1, 0.01)),
    "Muon": (_muon, (0.02, 2e-3)),
    "Adafactor": (Adafactor, (1e-2, 1e-3)),
    "weight decay alone": (partial(AdamW, weight_decay=0.1, eps=1e30), (1e-3, 3e-4)),
}


def measure(quick: bool) -> list[Row]:
    found = [(name, make, rate) for name, (make, rates) in OPTIMIZERS.items() for rate in rates]
    return [_row(*each, steps=3 if quick else STEPS) for each in (found[:1] if quick else found)]


def _row(name: str, make: Callable[..., Any], rate: float, steps: int) -> Row:
    log(f"{name} at a rate of {rate:g}")
    training = Training(make)
    for step in range(1, steps + 1):
        old = training.copies()
        training.step(step, gpt.rate_at(step, rate))
    new = training.copies()
    # Norms are near 1, and a few of them would make |weights| twice as large.
    matrices = [[name for name in names if new[name].dim() == 2] for names in layer_names(new)]
    found = of_modules(old, old, new, matrices)
    rule = 10.6 + log2(found["change"])
    return {"optimizer": name, "rate": rate, "rule": rule} | {
        key: found[key] for key in ("changed", "change", "relative fast")
    }


TABLE = Table(
    "optimizers",
    "Exact differences by optimizer",
    f"The matrices of the layers of the model above after {STEPS} steps at a flat rate, as other optimizers step them. "
    "The rule says 10.6 + log2(change/weights) bits a weight, for optimizers that change all weights by about as much, "
    "and above half a bit.",
    (
        ("optimizer", "optimizer", ""), ("rate", "rate", ".3g"), ("changed", "changed", ".1%"),
        ("change/weights", "change", ".5f"), ("relative `fast`", "relative fast", ".2f"), ("the rule", "rule", ".2f"),
    ),
    measure,
)  # fmt: skip
