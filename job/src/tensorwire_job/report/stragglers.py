"""Ranks that come late by a little, told from polls alone: the others wait in operations more often than they do.

No operation is timed. Each poll shows whether a rank is in an operation; over some minutes, the share of such polls
tells how long it waits. The others wait for a rank that waits less than the median rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING

import numpy as np

from ..columns import RankColumns

if TYPE_CHECKING:
    from ..columns import Floats, Ints
    from ..model import Observation

LEAST = 0.1
"""A rank is told of from this share of the time on, by which it waits less than the median rank."""

ENOUGH = 40
"""Polls, before anything is told."""

_MEMORY = 300.0  # polls
_SURE = 3.0  # times the deviation that chance makes of so many polls


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank, the share of the time by which it waits less than the median rank, and how much of it may be chance."""

    rank: int
    late: float
    chance: float

    def is_late(self) -> bool:
        """Whether it is late by more than chance explains, and enough to be told of."""
        return self.late >= max(LEAST, self.chance)


class Stragglers:
    """Takes one observation after another. Ranks count while they complete operations."""

    def __init__(self) -> None:
        # The ranks that are in view, and values of each.
        self._numbers: Ints = np.zeros(0, np.int64)
        self._completed: Ints = np.zeros(0, np.int64)
        self._polls: Floats = np.zeros(0)
        self._inside: Floats = np.zeros(0)  # polls in which it was in an operation

    def add(self, observation: Observation) -> None:
        ranks = RankColumns.of(observation.ranks)
        if not np.array_equal(ranks.numbers, self._numbers):
            self._follow(ranks)
        rows = ranks.rows
        is_inside = np.zeros(len(ranks))
        is_inside[rows.places[~np.isnan(rows.open_seconds) & ~rows.pairwise]] = 1.0
        goes_on = ranks.completed > self._completed
        kept = 1.0 - 1.0 / _MEMORY
        self._polls[goes_on] = kept * self._polls[goes_on] + 1.0
        self._inside[goes_on] = kept * self._inside[goes_on] + is_inside[goes_on]
        self._completed = ranks.completed

    def _follow(self, ranks: RankColumns) -> None:
        """Take over which ranks are in view. Nothing is known of new ones."""
        _, now, before = np.intersect1d(ranks.numbers, self._numbers, assume_unique=True, return_indices=True)
        completed, polls, inside = ranks.completed.copy(), np.zeros(len(ranks)), np.zeros(len(ranks))
        completed[now], polls[now], inside[now] = self._completed[before], self._polls[before], self._inside[before]
        self._numbers, self._completed, self._polls, self._inside = ranks.numbers, completed, polls, inside

    @property
    def num_polls(self) -> int:
        """The polls in which ranks completed operations, for the rank that was seen most."""
        return round(float(self._polls.max(initial=0.0)))

    def ranking(self) -> list[Straggler]:
        """The five latest, the latest first; none where chance explains the difference."""
        late_enough = takewhile(lambda one: one.late >= LEAST, self._below_median())
        return list(islice((straggler for straggler in late_enough if straggler.is_late()), 5))

    def slowest(self) -> list[Straggler]:
        """Three ranks that wait less than the median rank, the latest first, by however little."""
        return list(islice(self._below_median(), 3))

    def _below_median(self) -> Iterator[Straggler]:
        """The latest first."""
        known = self._polls >= ENOUGH
        if np.count_nonzero(known) < 3:
            return
        numbers, polls = self._numbers[known], self._polls[known]
        shares = self._inside[known] / polls
        usual = float(np.median(shares))
        late = usual - shares
        for place in np.lexsort((numbers, -late)).tolist():
            if late[place] <= 0.0:
                return
            chance = _SURE * (usual * (1.0 - usual) / float(polls[place])) ** 0.5
            yield Straggler(int(numbers[place]), float(late[place]), chance)
