"""The analyzer: one job's observations in, its current findings out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..columns import EdgeColumns, RankColumns
from ..model import Thresholds
from .slowness.slow import SlowWatch
from .state import State
from .verdicts.endings import find_ended
from .verdicts.hangs import find_hangs
from .verdicts.no_progress import find_no_progress
from .view import transport
from .view.job import Job
from .view.states import waits_elsewhere
from .view.work import STEPS

if TYPE_CHECKING:
    from ..model import Finding, Observation
    from .view.verdict import Verdict


@dataclass(slots=True)
class Analysis:
    """What one observation led to.

    Attributes:
        findings: those that stand now, the most important first.
        time_from: process groups whose operations should be timed, each with the sequence number of the first one to
            time; empty if none should be.
        stacks_of: ranks whose stacks would help and are not known.
    """

    findings: list[Finding]
    time_from: dict[str, int]
    stacks_of: list[int]


class Analyzer:
    """Names the rank to blame, after CCL-D (arXiv 2605.04478); job/docs/method.md has the order of decisions.

    Pure: the same observations give the same findings, whenever and wherever. Memory is bounded by the size of the job.
    Not thread-safe.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or Thresholds()
        self._step = min(self._thresholds.slow_seconds, self._thresholds.hang_seconds) / STEPS
        self._state = State(SlowWatch(self._thresholds))

    def update(self, observation: Observation) -> Analysis:
        """What stands now, and what would help to tell more.

        A finding keeps the time at which it was first made for as long as its cause lasts. Cheap while nothing is
        amiss: all ranks are looked at in columns, and process groups a few times in a window.
        """
        self._follow(observation)
        state = self._state
        job = Job(
            observation.time,
            observation.world_size,
            state.ranks,
            observation.silent_nodes,
            EdgeColumns.of(observation.edges),
            self._thresholds,
            state.recent_phases(self._thresholds.hang_seconds),
            state.samples,
            state.work,
            state.histories,
        )
        if observation.time >= state.next_sample:
            state.next_sample = observation.time + 0.999 * self._step
            state.slow_verdicts = state.slow.sample(job)
            state.unlike_types_verdicts = state.unlike_types.sample(job)
            if not _say_why(state.current):  # it asks each rank
                state.no_progress_verdicts = find_no_progress(job, state.first_seen)
            state.samples.append(transport.sample(job))
            state.work.sample(job.time, job.columns)
            state.waits_elsewhere = waits_elsewhere(job)
        verdicts = _judge(job, state)
        if _say_why(verdicts):
            state.no_progress_verdicts = []  # once what was found is over, the job moves again
        state.settle(verdicts, observation)
        state.keep_hangs()
        findings = [state.dressed(verdict) for verdict in state.current]
        return Analysis(findings, dict(state.slow.timing or {}), state.stacks_of())

    def add_stack(self, rank: int, text: str) -> None:
        """The stack of a rank, or why there is none. It stays with the finding."""
        self._state.stacks[rank] = text

    def _follow(self, observation: Observation) -> None:
        """Take over the ranks that are in view. A newer generation, or another run, starts from nothing."""
        state = self._state
        if observation.run_id != state.run_id or observation.time < state.time:
            state = State(SlowWatch(self._thresholds), observation.run_id)
        elif observation.time > state.time + 2 * self._thresholds.slow_seconds:
            state.forget_times()
        ranks = RankColumns.of(observation.ranks)
        newest = int(ranks.places.generations.max(initial=-1))
        if newest > state.generation:
            state = State(SlowWatch(self._thresholds), observation.run_id, newest)
        state.time, state.silent = observation.time, set(observation.silent_nodes)
        state.look_at(ranks, self._thresholds.hang_seconds)
        self._state = state


def _say_why(verdicts: list[Verdict]) -> bool:
    """Whether something was found that explains why nothing goes on."""
    return any(verdict.kind not in ("no progress", "unlike types") for verdict in verdicts)


def _judge(job: Job, state: State) -> list[Verdict]:
    """The order of decisions: jobs that were told to end, lost ranks, hangs, slowness, no progress, other types."""
    failed = state.failed_alive()
    if failed:
        job = replace(job, ranks=state.ranks.as_gone(failed))
    dead = {number: job.ranks[number] for number in (*sorted(state.dead), *failed)}
    if (dead or state.has_halted()) and not state.are_more_to_go(dead):
        known = {number for verdict in state.current if verdict.kind == "lost" for number in verdict.finding.suspects}
        ended = find_ended(job, dead, state.recent_hangs, known)
        if ended is not None:
            return ended
    if state.is_failing():
        # Until the time has come to tell what they died of: what is left of a hang would accuse its victims.
        return state.recent_hangs or state.slow_verdicts
    may_hang = state.is_blocked or state.waits_elsewhere or state.dead
    verdicts = find_hangs(job) if may_hang else []
    if not any(verdict.finding.level == "finding" for verdict in verdicts):
        verdicts = verdicts + state.slow_verdicts
    verdicts = verdicts or state.no_progress_verdicts
    named = {verdict.finding.process_group for verdict in verdicts}
    return verdicts + [verdict for verdict in state.unlike_types_verdicts if verdict.finding.process_group not in named]
