"""How fast one process group is, and how long its members wait in it: now, and in good times."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from ...columns import taken
from ...model import Timing
from ..view.work import STEPS

if TYPE_CHECKING:
    from ...columns import Floats, Ints
    from ...model import Thresholds
    from ..view.groups import Group

_MEMORY = 64  # windows of good times
_RECOVERED = 0.7  # of slow_factor: the gate closes later than it opens, lest findings flap
_NOTHING = Timing(0, 0, 0.0, 0.0, 0.0, 0, 0)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Sums over rounds that members of a process group completed, with a place for each that was timed."""

    numbers: Ints  # the members
    counts: Floats
    pairwise: Floats  # of these, those that are rooted, between two, or empty
    seconds: Floats  # T
    longest: Floats  # T of the round that the mean leaves out; 0: of none
    least: Floats  # T of any round

    @property
    def mean(self) -> dict[int, float]:
        """T of each member. One slow step is no trouble: what is, comes again."""
        mean = np.maximum(self.seconds - self.longest, 0.0) / (self.counts - (self.longest > 0))
        return dict(zip(self.numbers.tolist(), mean.tolist(), strict=True))


def merge(windows: Sequence[Rounds]) -> Rounds:
    """All as one, of the members in each. It leaves out one round for all: each window may have a long one."""
    same, numbers = windows, windows[0].numbers
    if not all(np.array_equal(window.numbers, numbers) for window in windows):
        numbers = reduce(np.intersect1d, [window.numbers for window in windows])
        same = [taken(window, np.isin(window.numbers, numbers)) for window in windows]
    counts, pairwise, seconds = (
        np.sum([getattr(window, name) for window in same], axis=0) for name in ("counts", "pairwise", "seconds")
    )
    longest, least = np.max([window.longest for window in same], axis=0), np.min([w.least for w in same], axis=0)
    return Rounds(numbers, counts, pairwise, seconds, longest, least)


class Throughput:
    """What one process group completes, from one step of the window to the next, and how long its members wait for it.

    Attributes:
        is_slow: the gate is open: an operation takes `slow_factor` times as long as in good times.
        slowdown: by how much longer it takes.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self.is_slow = False
        self.slowdown = 1.0
        self._thresholds = thresholds
        self._steps: deque[tuple[float, int]] = deque(maxlen=STEPS + 1)
        self._good: deque[float] = deque(maxlen=_MEMORY)  # seconds per operation
        self._reported: float | None = None  # operations per second in good times, as the members know them
        self._timed: dict[int, Timing] | None = None  # at the end of the last window
        self._rounds: deque[tuple[float, Rounds]] = deque(maxlen=2 * STEPS)
        self._good_rounds: deque[Rounds] = deque(maxlen=_MEMORY)

    @property
    def seconds(self) -> float:
        """Time per operation at present; infinite where fewer than two were completed.

        An operation that takes longer than the window is for the hang gate to judge.
        """
        (start, before), (end, completed) = self._steps[0], self._steps[-1]
        return (end - start) / (completed - before) if completed - before >= 2 and end > start else inf

    @property
    def latest_seconds(self) -> float:
        """The same in the last step, if that is longer: where slowness has just begun, the window is full of better
        times."""
        (start, before), (end, completed) = self._steps[-min(2, len(self._steps))], self._steps[-1]
        return max(self.seconds, (end - start) / max(completed - before, 1))

    @property
    def good_seconds(self) -> float:
        """Time per operation in good times, of our own if there are enough of these; infinite while unknown."""
        if len(self._good) >= STEPS:
            return sorted(self._good)[(len(self._good) - 1) // 4]
        return 1.0 / self._reported if self._reported else inf

    def add(self, time: float, completed: int, reported: float | None, group: Group | None) -> None:
        """Take in a step.

        Args:
            completed: the most that any member has: news of others may be late.
            reported: the median of their own baselines.
            group: None where no member is timed.
        """
        if self._steps and completed < self._steps[-1][1]:
            self._steps.clear()
        self._steps.append((time, completed))
        self._reported = reported
        is_whole = time - self._steps[0][0] >= 0.8 * self._thresholds.slow_seconds and self.seconds < inf
        self.slowdown = self.seconds / self.good_seconds if is_whole else 1.0
        self.is_slow = self.slowdown > self._thresholds.slow_factor * (_RECOVERED if self.is_slow else 1.0)
        if is_whole and not self.is_slow:
            self._good.append(self.seconds)
        rounds = self._time(group)
        if rounds is not None:
            self._rounds.append((time, rounds))
            self._good_rounds.extend([] if self.is_slow else [rounds])

    def accept(self) -> None:
        """Take the present for good times: the script does something else now."""
        self.is_slow = False
        self._good = deque([self.seconds] * STEPS, maxlen=_MEMORY)
        self._good_rounds.clear()

    def rounds(self, since: float) -> Rounds | None:
        """What was timed since then of members that were timed all the time; None where there are none."""
        windows = [rounds for time, rounds in self._rounds if time > since]
        merged = merge(windows) if windows else None
        return merged if merged is not None and len(merged.numbers) else None

    def usual(self) -> dict[int, float]:
        """T of each member in good times; nothing while they are not known."""
        if len(self._good_rounds) < STEPS or self.good_seconds == inf:
            return {}
        known = [rounds.mean for rounds in self._good_rounds]
        return {n: median(mean[n] for mean in known) for n in set.intersection(*map(set, known))}

    def _time(self, group: Group | None) -> Rounds | None:
        """The rounds since the last window, where most of those who take part are timed alike and completed some."""
        timed = group.timings() if group is not None else {}
        if self._timed is None or group is None:
            self._timed = self._timed or timed  # before our time, for all we know
            return None
        starts = Counter(timing.first_sequence for timing in timed.values())
        first = max(starts, key=lambda start: (starts[start], start), default=0)
        rows = []
        for number, timing in sorted(timed.items()):
            before = self._timed.get(number, _NOTHING)
            if before.first_sequence != first or before.num_rounds > timing.num_rounds:
                before = _NOTHING
            count = timing.num_rounds - before.num_rounds
            if timing.first_sequence == first and count >= 2:
                pairwise = timing.rooted_or_pairwise - before.rooted_or_pairwise
                longest = timing.max_seconds if timing.max_seconds > before.max_seconds and count > 2 else 0.0
                sums = count, pairwise, timing.sum_seconds - before.sum_seconds, longest, timing.min_seconds
                rows.append((number, *sums))
        if 2 * len(rows) <= np.count_nonzero(group.completed):
            return None
        self._timed = timed
        numbers, *columns = zip(*rows, strict=True)
        return Rounds(np.array(numbers), *(np.array(column, dtype=np.float64) for column in columns))
