"""The slow gate where only counts are known: completed operations per second against a rolling baseline."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..view.work import STEPS

if TYPE_CHECKING:
    from ...model import Thresholds

_MEMORY = 64  # windows in the baseline
_ENOUGH = STEPS  # windows from which a baseline of our own is worth more than the ranks'
_RECOVERED = 0.7  # of slow_factor: the gate closes later than it opens, lest findings flap


@dataclass(slots=True)
class Throughput:
    """How fast one process group completes operations."""

    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=2 * STEPS + 1))
    windows: deque[float] = field(default_factory=lambda: deque(maxlen=_MEMORY))
    reported: float | None = None  # the ranks' own baseline
    is_slow: bool = False
    slowdown: float = 1.0  # baseline over present rate

    @property
    def baseline(self) -> float | None:
        """Operations per second in good times; None while unknown."""
        if len(self.windows) >= _ENOUGH:
            return sorted(self.windows)[3 * len(self.windows) // 4]
        return self.reported

    @property
    def seconds(self) -> float:
        """Time per operation at present."""
        rate = self._rate(0.0)
        return 1.0 / rate if rate else 0.0

    @property
    def latest_seconds(self) -> float:
        """Time per operation in the last step, or in the window if that is longer: where slowness has just begun, the
        window is full of better times."""
        if len(self.samples) < 2:
            return self.seconds
        (start, before), (end, completed) = self.samples[-2], self.samples[-1]
        return max(self.seconds, (end - start) / max(completed - before, 1))

    def add(self, time: float, completed: int, reported: float | None, thresholds: Thresholds) -> None:
        """Count what the members in view have completed.

        Args:
            completed: the most that any of them has: news of others may be late.
            reported: the median of their own baselines.
        """
        if self.samples and completed < self.samples[-1][1]:
            self.samples.clear()
        self.samples.append((time, completed))
        self.reported = reported
        rate = self._rate(0.8 * thresholds.slow_seconds)
        if rate is None:
            self.is_slow, self.slowdown = False, 1.0
            return
        baseline = self.baseline
        self.slowdown = baseline / rate if baseline else 1.0
        self.is_slow = self.slowdown > thresholds.slow_factor * (_RECOVERED if self.is_slow else 1.0)
        if not self.is_slow:
            self.windows.append(rate)

    def accept(self) -> None:
        """Take the present rate for legal: the script does something else now."""
        self.is_slow = False
        self.windows.clear()
        rate = self._rate(0.0)
        self.windows.extend([rate] * _ENOUGH if rate else [])

    def _rate(self, at_least: float) -> float | None:
        """Over the last window; None while it is shorter than that, or nothing or one operation was completed.

        An operation that takes longer than the window is for the hang gate to judge.
        """
        if len(self.samples) < 2:
            return None
        last_time, last = self.samples[-1]
        start = self.samples[max(0, len(self.samples) - 1 - STEPS)]
        if last - start[1] < 2 or last_time - start[0] < at_least or last_time <= start[0]:
            return None
        return (last - start[1]) / (last_time - start[0])
