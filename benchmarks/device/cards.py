"""What fused products gain on cards that were not measured: python -m benchmarks.device.cards

The model takes the smaller of two rates, of dense weights the bandwidth alone. It knows nothing of latency, caches and
launches. All is modelled.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

import tensorwire
from benchmarks import pages
from benchmarks.device.counts import PAGE

_SLOTS_USED = 0.6
_LANES = 128  # of a processor
_DENSE_NBYTES = 2
_ROWS, _COLUMNS = 64, 4096
PROFILES = ("resident", "fast")


class Card(NamedTuple):
    """Bytes that it reads in a second, processors, and their clock."""

    bandwidth: float
    processors: int
    hertz: float


CARDS = {"RTX 4070": Card(452e9, 46, 2.48e9), "H200": Card(3.67e12, 132, 1.7e9)}


def of_dense(card: Card, nbytes: float, instructions: float) -> float:
    """How many times as fast as dense weights a product of 1 to 8 inputs is, that reads so many bytes and executes so
    many instructions a word."""
    slots = _SLOTS_USED * card.processors * _LANES * card.hertz
    return min(card.bandwidth / nbytes, slots / instructions) / (card.bandwidth / _DENSE_NBYTES)


def instructions(profile: str) -> float:
    """A word, all included, as `make device-test` counts them."""
    start = f"| product `{profile}`, 1 to 8 inputs |"
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(start)]
    return float(line.split(" | ")[2])


def nbytes(profile: str) -> float:
    """A word of normal weights in a frame of this profile, and of the tables of runs, which have 2 bytes each."""
    weight = torch.randn(_ROWS, _COLUMNS, generator=torch.Generator().manual_seed(0)).mul(0.02).to(torch.bfloat16)
    return len(tensorwire.compress(weight, profile=profile)) / weight.numel() + 2 / 256


def rows() -> list[list[str]]:
    """Rows of the table, one a card."""
    costs = [(nbytes(profile), instructions(profile)) for profile in PROFILES]
    return [[name, *(f"{of_dense(card, *cost):.2f}" for cost in costs)] for name, card in CARDS.items()]


def main() -> None:
    print("Products of 1 to 8 inputs, times as fast as dense weights; modelled")
    print(pages.table(["card", *(f"`{profile}`" for profile in PROFILES)], rows()))


if __name__ == "__main__":
    main()
