"""The slow gate over all process groups: when to look closer, and when to say what was found."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, inf
from typing import TYPE_CHECKING

from ... import words
from ...confidence import Basis
from ..view.work import STEPS
from .slow_verdicts import Slow, judge
from .throughput import Throughput

if TYPE_CHECKING:
    from ...model import Thresholds
    from ..view.job import Job, Verdict

_ENOUGH = 8  # rounds from which a mean says something
_LEAD_SECONDS = 3.0  # for all agents to hear of a request before the first timed round
_PATIENCE = 3.0  # windows to wait for times that were asked for
_PATIENT_ROUNDS = 30.0  # but at least so many rounds


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
