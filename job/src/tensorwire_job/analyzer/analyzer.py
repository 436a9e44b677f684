"""The analyzer: one job's observations in, its current findings out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..columns import EdgeColumns, RankColumns
from ..model import Thresholds
from .memory import Memory
from .slowness.slow import SlowWatch
from .verdicts.endings import Ended
from .verdicts.hangs import find_hangs, find_no_progress
from .verdicts.unlike_calls import unlike_types
from .view import transport
from .view.exit_reasons import may_end
from .view.job import Job
from .view.states import waits_elsewhere
from .view.work import STEPS

if TYPE_CHECKING:
    from ..model import Finding, Observation
    from .view.job import Verdict


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
        self._memory = Memory(SlowWatch(self._thresholds))

    def update(self, observation: Observation) -> Analysis:
        """What stands now, and what would help to tell more.

        A finding keeps the time at which it was first made for as long as its cause lasts. Cheap while nothing is
        amiss: all ranks are looked at in columns, and process groups a few times in a window.
        """
        self._follow(observation)
        memory = self._memory
        job = Job(
            observation.time,
            observation.world_size,
            memory.ranks,
            observation.silent_nodes,
            EdgeColumns.of(observation.edges),
            self._thresholds,
            memory.recent_phases(self._thresholds.hang_seconds),
            memory.samples,
            memory.work,
            memory.histories,
        )
        if observation.time >= memory.next_sample:
            memory.next_sample = observation.time + 0.999 * self._step
            memory.slow_verdicts = memory.slow.sample(job)
            memory.unlike_types = unlike_types(job, memory.unlike_types)
            if not _say_why(memory.current):  # it asks each rank
                memory.no_progress_verdicts = find_no_progress(job, memory.first_seen)
            memory.samples.append(transport.sample(job))
            memory.work.sample(job.time, job.columns)
            memory.waits_elsewhere = waits_elsewhere(job)
        verdicts = _judge(job, memory)
        if _say_why(verdicts):
            memory.no_progress_verdicts = []  # once what was found is over, the job moves again
        memory.settle(verdicts, observation)
        memory.keep_hangs()
        findings = [memory.dressed(verdict) for verdict in memory.current]
        return Analysis(findings, dict(memory.slow.timing or {}), memory.stacks_of())

    def add_stack(self, rank: int, text: str) -> None:
        """The stack of a rank, or why there is none. It stays with the finding."""
        self._memory.stacks[rank] = text

    def _follow(self, observation: Observation) -> None:
        """Take over the ranks that are in view. A newer generation, or another run, starts from nothing."""
        memory = self._memory
        if observation.run_id != memory.run_id or observation.time < memory.time:
            memory = Memory(SlowWatch(self._thresholds), observation.run_id)
        elif observation.time > memory.time + 2 * self._thresholds.slow_seconds:
            memory.forget_times()
        ranks = RankColumns.of(observation.ranks)
        newest = int(ranks.places.generations.max(initial=-1))
        if newest > memory.generation:
            memory = Memory(SlowWatch(self._thresholds), observation.run_id, newest)
        memory.time = observation.time
        memory.look_at(ranks, observation.silent_nodes, self._thresholds.hang_seconds)
        self._memory = memory


def _say_why(verdicts: list[Verdict]) -> bool:
    """Whether something was found that explains why nothing goes on."""
    return any(verdict.kind not in ("no progress", "unlike types") for verdict in verdicts)


def _judge(job: Job, memory: Memory) -> list[Verdict]:
    """The order of decisions: jobs that were told to end, lost ranks, hangs, slowness, no progress, other types."""
    failed = memory.failed_alive()
    if failed:
        job = replace(job, ranks=memory.ranks.as_gone(failed))
    dead = {number: job.ranks[number] for number in (*sorted(memory.dead), *failed)}
    if (dead or may_end(job)) and not memory.are_more_to_go(dead):
        known = {number for verdict in memory.current if verdict.kind == "lost" for number in verdict.finding.suspects}
        ended = Ended(job, dead, known).verdicts(memory.recent_hangs)
        if ended is not None:
            return ended
    if memory.is_failing():
        # Until the time has come to tell what they died of: what is left of a hang would accuse its victims.
        return memory.recent_hangs or memory.slow_verdicts
    may_hang = memory.is_blocked or memory.waits_elsewhere or memory.dead
    verdicts = find_hangs(job) if may_hang else []
    if not any(verdict.finding.level == "finding" for verdict in verdicts):
        verdicts = verdicts + memory.slow_verdicts
    verdicts = verdicts or memory.no_progress_verdicts
    named = {verdict.finding.process_group for verdict in verdicts}
    return verdicts + [each for each in memory.unlike_types.values() if each.finding.process_group not in named]
