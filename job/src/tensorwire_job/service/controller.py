"""Requests to the nodes of a job, from the findings in its observations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..analyzer import Analyzer
from .merge import no_collection

if TYPE_CHECKING:
    from ..model import Finding, Observation, Thresholds

_ASK_AGAIN_SECONDS: Final = 30.0  # for a stack
_MIN_ROUNDS = 12
_WINDOW = 0.1  # of slow_seconds


@dataclass(slots=True)
class TimingRequest:
    """Windows of `num_rounds` operations of these process groups, each from a sequence number on, for all ranks to
    time; none if there are no groups."""

    first: dict[str, int] = field(default_factory=dict)
    num_rounds: int = 0


@dataclass(slots=True)
class Decision:
    """Findings, and requests to the nodes.

    Attributes:
        findings: those that stand now.
        timing: the windows to time from now on; None if they have not changed.
        stacks_of: ranks that are to be asked for their stacks now.
    """

    findings: list[Finding]
    timing: TimingRequest | None
    stacks_of: list[int]


class Controller:
    """Puts observations before the analyzer, and remembers the requests to the nodes."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._analyzer = Analyzer(thresholds)
        self._thresholds = thresholds
        self._asked: dict[int, float] = {}
        self.timing = TimingRequest()

    def decide(self, observation: Observation) -> Decision:
        with no_collection():
            analysis = self._analyzer.update(observation)
        changed = analysis.time_from != self.timing.first
        if changed:
            num_rounds = self._num_rounds(observation, analysis.time_from) if analysis.time_from else 0
            self.timing = TimingRequest(analysis.time_from, num_rounds)
        now = observation.time
        self._asked = {rank: time for rank, time in self._asked.items() if now - time < _ASK_AGAIN_SECONDS}
        stacks_of = [rank for rank in analysis.stacks_of if rank not in self._asked]
        self._asked |= dict.fromkeys(stacks_of, now)
        return Decision(analysis.findings, self.timing if changed else None, stacks_of)

    def add_stack(self, rank: int, text: str) -> None:
        self._asked.pop(rank, None)
        self._analyzer.add_stack(rank, text)

    @property
    def asked(self) -> Collection[int]:
        """The ranks that were asked for their stacks of late and have not answered."""
        return self._asked.keys()

    def _num_rounds(self, observation: Observation, timed: Collection[str]) -> int:
        """The rounds of a window: enough for agents, which poll once a second, to see the same window of all ranks; few
        enough for the analyzer, which compares a few times in slow_seconds, to have a new one each time."""
        rates = [
            group.baseline_rate
            for rank in observation.ranks.values()
            for group in rank.process_groups
            if group.id in timed and group.baseline_rate
        ]
        now = min(rates, default=0.0) / self._thresholds.slow_factor
        return max(_MIN_ROUNDS, round(now * self._thresholds.slow_seconds * _WINDOW))
