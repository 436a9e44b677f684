"""What is published in each turn: the next of three versions of synthetic BF16 weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from benchmarks.synthetic_pairs import synthetic_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

RATE = 5e-6  # changes about 2 % of the words
WORDS, TENSORS = 1 << 23, 12


@dataclass(frozen=True)
class Turn:
    """A version, and the one before it, as words of 16 bits by name."""

    old: Mapping[str, np.ndarray]
    new: Mapping[str, np.ndarray]

    @property
    def weights(self) -> dict[str, np.ndarray]:
        return {name: each.view(ml_dtypes.bfloat16) for name, each in self.new.items()}


class Model:
    """Turns go round three versions, each of which is one step away from each other one.

    Attributes:
        nbytes: of a version.
    """

    def __init__(self, words: int, tensors: int) -> None:
        made = {f"layers.{index}.weight": synthetic_versions(words, RATE, index) for index in range(tensors)}
        self._versions = [{name: each[number] for name, each in made.items()} for number in range(3)]
        self.nbytes = 2 * words * tensors

    def turn(self, number: int) -> Turn:
        return Turn(self._versions[(number - 1) % 3], self._versions[number % 3])

    def changed(self) -> float:
        """Which part of the words changes from one version to the next."""
        turn = self.turn(1)
        return float(np.mean([np.mean(turn.old[name] != turn.new[name]) for name in turn.new]))


@cache
def model(quick: bool) -> Model:
    return Model(1 << 16, 2) if quick else Model(WORDS, TENSORS)
