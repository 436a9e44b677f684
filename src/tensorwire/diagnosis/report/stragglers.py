"""Which ranks come late by a little, told from polls alone: the others wait in operations more often than they do.

It takes no timing of operations. Whether a rank is in an operation is known at each poll; over some minutes the share
of polls in which it is says how long it waits. A rank that waits less than the median rank is waited for by the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from ..columns import RankColumns

if TYPE_CHECKING:
    from ..model import Observation

LEAST = 0.1
"""Share of the time by which a rank waits less than the median rank, from which on it is told of."""

ENOUGH = 40
"""Polls, before anything is told."""

_MEMORY = 300.0  # polls
_SURE = 3.0  # times the deviation that chance makes of so many polls


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank, the share of the time by which it waits less than the median rank, and how much of that chance can do."""

    rank: int
    late: float
    chance: float

    def is_late(self) -> bool:
        """By more than chance explains, and enough to be told of."""
        return self.late >= max(LEAST, self.chance)


class Stragglers:
    """Takes one observation after another. Ranks count while they complete operations."""

    def __init__(self) -> None:
        self._polls: dict[int, tuple[float, float]] = {}  # how many, and in how many the rank was in an operation
        self._completed: dict[int, int] = {}

    def add(self, observation: Observation) -> None:
        ranks = RankColumns.of(observation.ranks)
        for number in self._polls.keys() - ranks.keys():
            del self._polls[number]
        rows, numbers = ranks.rows, ranks.places.numbers
        counts = np.zeros(len(numbers), np.int64)
        np.add.at(counts, rows.places, rows.completed)
        is_inside = np.zeros(len(numbers), bool)
        is_inside[rows.places[~np.isnan(rows.open_seconds) & ~rows.pairwise]] = True
        completed = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        for number, inside_now in zip(numbers.tolist(), is_inside.tolist(), strict=True):
            if completed[number] > self._completed.get(number, completed[number]):
                polls, inside = self._polls.get(number, (0.0, 0.0))
                kept = 1.0 - 1.0 / _MEMORY
                self._polls[number] = kept * polls + 1.0, kept * inside + inside_now
        self._completed = completed

    @property
    def num_polls(self) -> int:
        """In which ranks completed operations, of the rank that was seen most."""
        return round(max((polls for polls, _ in self._polls.values()), default=0.0))

    def ranking(self, limit: int = 5) -> list[Straggler]:
        """The latest first; none where chance explains the difference."""
        return [straggler for straggler in self._below_median() if straggler.is_late()][:limit]

    def slowest(self, limit: int = 3) -> list[Straggler]:
        """The ranks that wait less than the median rank, the latest first, by however little."""
        return self._below_median()[:limit]

    def _below_median(self) -> list[Straggler]:
        shares = {number: inside / polls for number, (polls, inside) in self._polls.items() if polls >= ENOUGH}
        if len(shares) < 3:
            return []
        usual = median(shares.values())
        found = [
            Straggler(number, usual - share, _SURE * (usual * (1.0 - usual) / self._polls[number][0]) ** 0.5)
            for number, share in shares.items()
            if share < usual
        ]
        return sorted(found, key=lambda straggler: (-straggler.late, straggler.rank))
