"""A job that shows what a test wants to be seen of it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorwire_job import model


class FakeJob:
    """Shows its observations one after another, then the last one again and again."""

    def __init__(self, observations: list[model.Observation], findings: list[model.Finding]) -> None:
        last = observations[-1]
        later = (dataclasses.replace(last, time=last.time + i) for i in itertools.count(1))
        self.observations = itertools.chain(observations, later)
        self.findings = findings
        self.thresholds: model.Thresholds | None = None
        self.interrupt_after: int | None = None
        self.num_polls = 0
        self.num_polls_until_stacks = 0
        self.closed = False

    @property
    def awaits_stacks(self) -> bool:
        return self.num_polls < self.num_polls_until_stacks

    def poll(self) -> tuple[model.Observation, list[model.Finding]]:
        self.num_polls += 1
        if self.num_polls == self.interrupt_after:
            raise KeyboardInterrupt
        observation = next(self.observations)
        return observation, [finding for finding in self.findings if finding.time <= observation.time]


class StillClock:
    """Stands in for the module `time`: its time passes in `sleep` alone, so that a number of polls can be told."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
