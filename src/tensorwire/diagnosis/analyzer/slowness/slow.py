"""The slow gate over all process groups: when to look closer, and when to say what was found."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import ceil
from typing import TYPE_CHECKING

from ... import words
from ..view.confidence import Basis
from ..view.work import STEPS
from .rounds import ENOUGH, Timer
from .slow_group import Slow
from .slow_verdicts import judge
from .throughput import Throughput

if TYPE_CHECKING:
    from ...model import Thresholds
    from ..view.job import Job
    from ..view.transport import Transport
    from ..view.verdict import Verdict
    from .held_back import Poll

_NOTICEABLE = 1.5  # a slowdown that T alone may call slow: below it, ranks that wait longer cost nobody anything
_MOST = 0.6  # of a window: so much of it was timed that the rounds are enough, though few
_LEAD_SECONDS = 3.0  # for all agents to hear of a request before the first timed round
_PATIENCE = 3.0  # windows to wait for times that were asked for
_PATIENT_ROUNDS = 30.0  # but at least so many rounds
_COOLING = 5.0  # windows before asking again after nothing was found


class SlowWatch:
    """Watches throughput and T of all process groups. Fed once a step of the window, asked for verdicts at any time."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self.clear()

    def clear(self) -> None:
        self.timing: dict[str, int] | None = None
        self._throughputs: dict[str, Throughput] = {}
        self._timers: dict[str, Timer] = {}
        self._polls: deque[Poll] = deque(maxlen=STEPS + 1)
        self._since = float("inf")  # the gate is open
        self._asked: float | None = None
        self._measured_since: float | None = None
        self._quiet_until = float("-inf")
        self._current: list[Verdict] = []

    def sample(self, job: Job, transport: Transport) -> list[Verdict]:
        """Take in the counts and times of now, and give the verdicts that stand."""
        self._add(job)
        slow = [group_id for group_id, throughput in self._throughputs.items() if throughput.is_slow]
        late = [group_id for group_id in self._timers if self._is_late(job, group_id)]
        if not slow and not late:
            self.timing, self._asked, self._measured_since, self._current, self._since = None, None, None, [], job.time
            return []
        measured = self._measured(job, set(slow), set(late))
        if measured:
            if self._measured_since is None:
                self._measured_since = job.time
            found = judge(job, transport, measured, self._polls)
            if found:
                self._current, self.timing = found, None
            elif not self._current and job.time - self._measured_since > self._thresholds.slow_seconds:
                self._accept(job.time, slow)
        elif not self._current:
            self._ask(job, slow)
        return self._current

    def _add(self, job: Job) -> None:
        self._polls.append((job.time, job.columns))
        for group_id in self._throughputs.keys() - job.groups.keys():
            del self._throughputs[group_id], self._timers[group_id]
        rows, groups = job.columns.rows, job.groups
        counts = groups.most(rows.completed), groups.medians(rows.baseline_rates), groups.any(rows.timed)
        for group_id, completed, reported, is_timed in zip(groups, *counts, strict=True):
            if group_id not in self._throughputs:
                self._throughputs[group_id], self._timers[group_id] = Throughput(), Timer()
            throughput, timer = self._throughputs[group_id], self._timers[group_id]
            throughput.add(job.time, completed, reported, self._thresholds)
            rounds = timer.add(job.time, groups[group_id] if is_timed else None)
            is_fast = throughput.slowdown < _NOTICEABLE and not timer.is_slow(job.time, self._thresholds)
            if rounds is not None and is_fast:
                timer.good.append(rounds)

    def _is_late(self, job: Job, group_id: str) -> bool:
        """Whether T has grown. Stages of a pipeline wait for each other anyway."""
        is_noticeable = self._throughputs[group_id].slowdown >= _NOTICEABLE and not job.groups[group_id].peers
        return is_noticeable and self._timers[group_id].is_slow(job.time, self._thresholds)

    def _measured(self, job: Job, slow: set[str], late: set[str]) -> list[Slow]:
        """What was timed since the gate opened; nothing while times of slow process groups are still to come."""
        window = 1.01 * max(self._thresholds.slow_seconds, job.time - self._since)
        measured = []
        for group_id, timer in self._timers.items():
            rounds, throughput, good = timer.recent(job.time, window), self._throughputs[group_id], timer.baseline()
            if rounds is None:
                continue
            if rounds.num_rounds < ENOUGH and rounds.num_rounds * throughput.seconds < _MOST * window:
                continue
            normal = 1.0 / throughput.baseline if throughput.baseline else 0.0
            t_base = good[0] if good else min(rounds.least, normal)
            measured.append(Slow(
                job.groups[group_id], rounds, t_base, throughput.seconds, normal, is_late=group_id in late,
                is_slow=group_id in slow, usual=timer.usual(),
            ))  # fmt: skip
        known = {one.group.id for one in measured}
        open_questions = {group_id for group_id in self._in_use(job, slow) - known if not job.groups[group_id].peers}
        if open_questions and not self._is_overdue(job.time, open_questions):
            return []
        return measured if any(one.is_late or one.is_slow for one in measured) else []

    def _in_use(self, job: Job, slow: set[str]) -> set[str]:
        """Process groups whose times are wanted: the slow ones. Where these are messages alone, whose waits are always
        known, all: a rank that seems to take long between two messages may wait in a collective."""
        if any(not job.groups[group_id].peers for group_id in slow):
            return slow
        return slow | {group_id for group_id, throughput in self._throughputs.items() if throughput.seconds}

    def _is_overdue(self, time: float, group_ids: Iterable[str]) -> bool:
        """Whether times of these process groups should have come by now."""
        slowest = max(self._throughputs[group_id].seconds for group_id in group_ids)
        patience = max(_PATIENCE * self._thresholds.slow_seconds, _PATIENT_ROUNDS * slowest)
        return time - self._since >= _LEAD_SECONDS + patience

    def _ask(self, job: Job, slow: list[str]) -> None:
        """Have the operations of all process groups timed; give up after a while, and say so."""
        if not slow or job.time < self._quiet_until:
            return
        if self._asked is None:
            self._asked = job.time
            self.timing = {}
            for group_id, enqueued in zip(job.groups, job.groups.most(job.columns.rows.enqueued), strict=True):
                seconds = self._throughputs[group_id].latest_seconds
                if seconds:  # those that are not slow yet as well: who waits in one is late in another
                    self.timing[group_id] = enqueued + 2 + ceil(_LEAD_SECONDS / seconds)
        elif self._is_overdue(job.time, slow):
            self._current = [self._untimed(job, slow)]

    def _accept(self, time: float, slow: list[str]) -> None:
        """Nothing in the process groups explains the lower rate: the ranks do something else, all of them."""
        for group_id in slow:
            self._throughputs[group_id].accept()
        self._asked, self.timing = None, None
        self._quiet_until = time + _COOLING * self._thresholds.slow_seconds

    def _untimed(self, job: Job, slow: list[str]) -> Verdict:
        group = job.groups[max(slow, key=lambda group_id: (len(job.groups[group_id].members), group_id))]
        throughput = self._throughputs[group.id]
        normal = throughput.seconds / throughput.slowdown
        return job.verdict(
            "slow", "TW-UNKNOWN", group, [],
            f"{group.title} takes {throughput.slowdown:.1f} times as long per operation as before, and the rank to "
            "blame is unknown: no completion times",
            [
                f"{words.seconds(throughput.seconds)} per operation, {words.seconds(normal)} before",
                "timing was enabled, but most ranks sent no times of the same rounds",
            ],
            Basis.REMAINDER, victims=len(group.members),
        )  # fmt: skip
