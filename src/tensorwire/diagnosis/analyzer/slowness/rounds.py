"""T of the rounds that all members of a process group were timed in, and P (after CCL-D, arXiv 2605.04478)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from ..view.work import STEPS

if TYPE_CHECKING:
    from ...model import Thresholds, Timing
    from ..view.groups import Group

ENOUGH = 8
"""Rounds from which a mean says something."""

_MEMORY = 64  # timing windows in the baseline of T
_PAIRWISE = 0.1  # share of rounds from which P means nothing


@dataclass(slots=True)
class Rounds:
    """The mean T of each member over some rounds but its longest, in seconds.

    One slow step is no trouble: what is, comes again.
    """

    time: float  # when they were seen
    num_rounds: int
    mean: dict[int, float]
    longest: dict[int, float]  # that the mean leaves out; 0: none
    least: float  # of any round at any rank
    pairwise: float  # share of rounds that are rooted, between two, or empty

    @property
    def latest(self) -> int:
        """The member that waits least: it comes last."""
        return min(self.mean, key=lambda number: (self.mean[number], number))

    @property
    def t_min(self) -> float:
        return min(self.mean.values())

    @property
    def t_max(self) -> float:
        return max(self.mean.values())

    @property
    def p_is_valid(self) -> bool:
        return len(self.mean) > 2 and self.pairwise <= _PAIRWISE

    def p(self, t_base: float) -> float:
        """(Tmax - Tmin) / (Tmax - Tbase): the share of the lost time that is due to late arrival."""
        lost = self.t_max - min(t_base, self.t_min)
        return (self.t_max - self.t_min) / lost if lost > 0 else 0.0


@dataclass(slots=True)
class Timer:
    """The rounds of one process group, one timing window after another, as its ranks are seen to complete them."""

    windows: deque[Rounds] = field(default_factory=lambda: deque(maxlen=2 * STEPS))
    good: deque[Rounds] = field(default_factory=lambda: deque(maxlen=_MEMORY))
    _seen: dict[int, Timing] | None = None  # at the end of the last timing window

    def add(self, time: float, group: Group | None) -> Rounds | None:
        """The rounds since the last call, where most of those who take part are timed alike and have completed some.

        Args:
            group: None where no member is timed.
        """
        timed = group.timings() if group is not None else {}
        if self._seen is None or group is None:
            self._seen = self._seen or timed  # before our time, for all we know
            return None
        taking_part = np.count_nonzero(group.completed)
        if 2 * len(timed) <= taking_part:
            return None
        first = max(timing.first_sequence for timing in timed.values())
        found: dict[int, tuple[float, float, int, int]] = {}
        for number, timing in timed.items():
            before = self._seen.get(number)
            window = _since(timing, before if before and before.first_sequence == first else None)
            if timing.first_sequence == first and window is not None:
                found[number] = window
        counts = [count for _, _, count, _ in found.values()]
        if 2 * len(found) <= taking_part or max(counts) > 2 * min(counts) + 2:
            return None  # some lag behind: compare once they have caught up
        self._seen = timed
        mean, longest = ({number: window[i] for number, window in found.items()} for i in (0, 1))
        least = min(timed[number].min_seconds for number in found)
        pairwise = max(rooted for *_, rooted in found.values())
        self.windows.append(Rounds(time, min(counts), mean, longest, least, pairwise / max(counts)))
        return self.windows[-1]

    def recent(self, time: float, seconds: float) -> Rounds | None:
        """The rounds of so many seconds before that time, as one."""
        return merge(window for window in self.windows if window.time > time - seconds)

    def baseline(self) -> tuple[float, float] | None:
        """Tmin and Tmax in good times; None while they are not known."""
        if len(self.good) < STEPS:
            return None
        return median(rounds.t_min for rounds in self.good), median(rounds.t_max for rounds in self.good)

    def usual(self) -> dict[int, float]:
        """T of each member in good times; nothing while they are not known."""
        if len(self.good) < STEPS:
            return {}
        members = set.intersection(*(set(rounds.mean) for rounds in self.good))
        return {number: median(rounds.mean[number] for rounds in self.good) for number in members}

    def is_slow(self, time: float, thresholds: Thresholds) -> bool:
        """Whether Tmax has been over `slow_factor` times its baseline in most timing windows of slow_seconds."""
        baseline = self.baseline()
        if baseline is None:
            return False
        recent = [window for window in self.windows if window.time > time - 1.01 * thresholds.slow_seconds]
        slow = [window for window in recent if window.t_max > thresholds.slow_factor * baseline[1]]
        return len(slow) >= STEPS // 2 and 3 * len(slow) >= 2 * len(recent) and recent[-1] in slow


def _since(timing: Timing, before: Timing | None) -> tuple[float, float, int, int] | None:
    """Mean T without the longest round, where that is a new one; that; number of rounds, and how many are pairwise."""
    count, total, pairwise, longest = timing.num_rounds, timing.sum_seconds, timing.rooted_or_pairwise, 0.0
    if before is not None and before.num_rounds <= count:
        count, total, longest = count - before.num_rounds, total - before.sum_seconds, before.max_seconds
        pairwise -= before.rooted_or_pairwise
    if count < 2:
        return None
    if timing.max_seconds > longest and count > 2:
        return max(0.0, total - timing.max_seconds) / (count - 1), timing.max_seconds, count, pairwise
    return max(0.0, total) / count, 0.0, count, pairwise


def merge(windows: Iterable[Rounds]) -> Rounds | None:
    """All of these as one. Only the longest round of all is left out: there may be one in every timing window."""
    windows = list(windows)
    if not windows:
        return None
    members = set.intersection(*(set(window.mean) for window in windows))
    total = sum(window.num_rounds for window in windows)
    if not members or not total:
        return None
    mean, longest = {}, {}
    for number in members:
        longest[number] = max(window.longest[number] for window in windows)
        seconds = sum(_seconds(window, number) for window in windows) - longest[number]
        mean[number] = max(0.0, seconds) / (total - (longest[number] > 0))
    pairwise = sum(window.pairwise * window.num_rounds for window in windows) / total
    return Rounds(windows[-1].time, total, mean, longest, min(window.least for window in windows), pairwise)


def _seconds(window: Rounds, number: int) -> float:
    longest = window.longest[number]
    return window.mean[number] * (window.num_rounds - (longest > 0)) + longest
