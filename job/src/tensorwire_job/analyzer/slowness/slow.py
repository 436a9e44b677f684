"""How fast process groups are and how long their members wait, now and in good times; the slow gate over all of them:
when to look closer, and when to say what was found."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil, inf
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from ... import words
from ...columns import taken
from ...confidence import Basis
from ...model import Timing
from ..view.work import STEPS
from .slow_verdicts import Slow, judge

if TYPE_CHECKING:
    from ...columns import Floats, Ints
    from ...model import Thresholds
    from ..view.groups import Group
    from ..view.job import Job, Verdict

_MEMORY = 64  # windows of good times
_RECOVERED = 0.7  # of slow_factor: the gate closes later than it opens, lest findings flap
_NOTHING = Timing(0, 0, 0.0, 0.0, 0.0, 0, 0)
_ENOUGH = 8  # rounds from which a mean says something
_LEAD_SECONDS = 3.0  # for all agents to hear of a request before the first timed round
_PATIENCE = 3.0  # windows to wait for times that were asked for
_PATIENT_ROUNDS = 30.0  # but at least so many rounds


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


class SlowWatch:
    """Watches all process groups. Fed once a step of the window or more often.

    Attributes:
        timing: process groups that are to be timed, each from a sequence number on; None if none are.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self.clear()

    def clear(self) -> None:
        self.timing: dict[str, int] | None = None
        self._throughputs: dict[str, Throughput] = {}
        self._since = self._measured_since = inf  # the gate is open; times of the slow process groups are there
        self._next = -inf
        self._current: list[Verdict] = []

    def sample(self, job: Job) -> list[Verdict]:
        """Take in the counts and times of now, if a step has passed, and give the verdicts that stand."""
        if job.time < self._next:
            return self._current
        self._next = job.time + 0.999 * self._thresholds.slow_seconds / STEPS
        self._add(job)
        slow = [group_id for group_id, throughput in self._throughputs.items() if throughput.is_slow]
        if not slow:
            self.timing, self._current, self._since, self._measured_since = None, [], job.time, inf
            return []
        measured = self._measured(job, slow)
        found = judge(job, measured)
        if measured:
            self._measured_since = min(self._measured_since, job.time)
        if found:
            self._current, self.timing = found, None
        elif measured and not self._current and job.time - self._measured_since > self._thresholds.slow_seconds:
            for group_id in slow:  # nothing in them explains it: the ranks do something else, all of them
                self._throughputs[group_id].accept()
            self.timing = None
        elif not measured and not self._current:
            if self.timing is None:
                self.timing = self._first_to_time(job)
            elif self._is_overdue(job.time, slow):
                self._current = [self._untimed(job, slow)]
        return self._current

    def _add(self, job: Job) -> None:
        for group_id in self._throughputs.keys() - job.groups.keys():
            del self._throughputs[group_id]
        rows, groups = job.columns.rows, job.groups
        counts = groups.most(rows.completed), groups.medians(rows.baseline_rates), groups.any(rows.timed)
        for group_id, completed, reported, is_timed in zip(groups, *counts, strict=True):
            throughput = self._throughputs.get(group_id)
            if throughput is None:
                throughput = self._throughputs[group_id] = Throughput(self._thresholds)
            throughput.add(job.time, completed, reported, groups[group_id] if is_timed else None)

    def _measured(self, job: Job, slow: list[str]) -> list[Slow]:
        """What was timed since the gate opened; nothing while times of slow process groups are still to come."""
        since = min(job.time - 1.01 * self._thresholds.slow_seconds, self._since)
        measured = {}
        for group_id, throughput in self._throughputs.items():
            rounds = throughput.rounds(since)
            if rounds is not None and _ENOUGH <= rounds.counts.max() <= 2 * rounds.counts.min() + 2:  # else some lag
                measured[group_id] = Slow(job.groups[group_id], throughput, rounds)
        wanted = slow
        if all(job.groups[group_id].peers for group_id in slow):
            # The waits for messages are always known. A rank that seems to take long between two of them may wait in a
            # collective.
            wanted = [group_id for group_id, throughput in self._throughputs.items() if throughput.seconds < inf]
        to_come = [group_id for group_id in wanted if group_id not in measured and not job.groups[group_id].peers]
        if to_come and not self._is_overdue(job.time, to_come):
            return []
        return list(measured.values()) if not measured.keys().isdisjoint(slow) else []

    def _is_overdue(self, time: float, group_ids: Collection[str]) -> bool:
        """Whether times of these process groups should have come by now."""
        slowest = max(self._throughputs[group_id].seconds for group_id in group_ids)
        patience = max(_PATIENCE * self._thresholds.slow_seconds, _PATIENT_ROUNDS * slowest)
        return time - self._since >= _LEAD_SECONDS + patience

    def _first_to_time(self, job: Job) -> dict[str, int]:
        """The next operation of each process group that all ranks can time; of those that are not slow yet as well: who
        waits in one is late in another."""
        enqueued = zip(job.groups, job.groups.most(job.columns.rows.enqueued), strict=True)
        latest = {group_id: (number, self._throughputs[group_id].latest_seconds) for group_id, number in enqueued}
        return {each: n + 2 + ceil(_LEAD_SECONDS / seconds) for each, (n, seconds) in latest.items() if seconds < inf}

    def _untimed(self, job: Job, slow: list[str]) -> Verdict:
        group = job.groups[max(slow, key=lambda group_id: (len(job.groups[group_id].members), group_id))]
        throughput = self._throughputs[group.id]
        return job.verdict(
            "slow", "TW-UNKNOWN", group, [],
            f"{group.title} takes {throughput.slowdown:.1f} times as long per operation as before, and the rank to "
            "blame is unknown: no completion times",
            [
                f"{words.seconds(throughput.seconds)} per operation, {words.seconds(throughput.good_seconds)} before",
                "timing was enabled, but most ranks sent no times of the same rounds",
            ],
            Basis.REMAINDER, victims=len(group.members),
        )  # fmt: skip
