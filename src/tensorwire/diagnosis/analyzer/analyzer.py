"""The analyzer: one job's observations in, its current findings out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..model import Confidence, Thresholds
from .exit_reasons import CLEAN, is_secondary
from .hang import find_hangs
from .job import Job
from .lost import find_lost
from .slow import SlowWatch
from .throughput import STEPS
from .transport import Transport
from .waits import BLOCKED_SHARE

if TYPE_CHECKING:
    from collections.abc import Set

    from ..model import Finding, Observation, Rank
    from .job import Verdict

_GONE = ("exited", "lost")
_NO_FAILURE = ("", CLEAN)  # exit reasons
_SUSPECTS_WITH_STACKS = 3
_MOMENT_SECONDS = 2.5  # agents look once a second
_ENDING_SECONDS = 20.0  # that a process may take to end, once it has said why


class Analyzer:
    """Names the rank to blame, after CCL-D (arXiv 2605.04478); docs/diagnosis.md has the order of decisions.

    Pure: the same observations give the same findings, whenever and wherever. Memory is bounded by the size of the job.
    Not thread-safe.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or Thresholds()
        self._transport = Transport()
        self._slow = SlowWatch(self._thresholds)
        self._next_sample = float("-inf")
        self._step = min(self._thresholds.slow_seconds, self._thresholds.hang_seconds) / STEPS
        self._run_id = ""
        self._ranks: dict[int, Rank] = {}  # the newest generation's that are in view
        self._silent: set[str] = set()
        self._dead: set[int] = set()
        self._blocked: set[int] = set()  # ranks with an operation beyond the hang gate
        self._leaving: dict[int, float] = {}  # ranks that fail, and since when they are known to
        self._phases: dict[int, tuple[str, float]] = {}  # that ranks declared, and when they last were in them
        self._standing: list[Verdict] = []
        self._hangs: list[Verdict] = []  # that stand, or stood a moment ago
        self._hung = float("-inf")  # when they stood last
        self._slow_verdicts: list[Verdict] = []
        self._stacks: dict[int, str] = {}
        self._forget()

    def update(self, observation: Observation) -> list[Finding]:
        """The findings that stand now, the most important first.

        A finding keeps the time at which it was first made for as long as its cause lasts. Cheap while nothing is
        amiss: only the ranks in `observation.changed` are looked at, and all of them a few times in a window.
        """
        self._follow(observation)
        job = Job(
            observation.time,
            observation.world_size,
            self._ranks,
            observation.silent_nodes,
            observation.edges,
            self._thresholds,
            self._recent_phases(),
        )
        if observation.time >= self._next_sample:
            self._next_sample = observation.time + 0.999 * self._step
            self._slow_verdicts = self._slow.sample(job, self._transport)
            self._transport.sample(job, BLOCKED_SHARE * self._thresholds.hang_seconds)
        self._settle(self._judge(job), observation)
        self._keep_hangs()
        return [self._dressed(verdict.finding) for verdict in self._standing]

    def _judge(self, job: Job) -> list[Verdict]:
        dead = {number: self._ranks[number] for number in sorted(self._dead)}
        lost = find_lost(job, dead, self._hangs) if dead and not self._are_more_to_go(dead) else None
        if lost is not None:
            return [lost]
        if self._is_failing():
            # Until the time has come to tell what they died of: what is left of a hang would accuse its victims.
            return self._hangs or self._slow_verdicts
        verdicts = find_hangs(job, self._transport) if self._blocked else []
        if not any(verdict.finding.level == "finding" for verdict in verdicts):
            verdicts = verdicts + self._slow_verdicts
        return verdicts

    def _is_failing(self) -> bool:
        """Whether ranks are gone, or have said what they fail of and had no time yet to end."""
        if any(self._ranks[number].process.exit_reason != CLEAN for number in self._dead):
            return True
        return bool(self._ending())

    def _are_more_to_go(self, dead: dict[int, Rank]) -> bool:
        """Whether those that are gone were told of a trouble, and some that may have told them are about to end."""
        return bool(self._ending() - dead.keys()) and all(is_secondary(rank) for rank in dead.values())

    def _ending(self) -> set[int]:
        return {number for number, since in self._leaving.items() if self._time - since < _ENDING_SECONDS}

    def _keep_hangs(self) -> None:
        """For a moment: ranks that ran out of time are through with the operation before they say so."""
        hangs = [verdict for verdict in self._standing if verdict.kind == "hang"]
        if hangs:
            self._hangs, self._hung = hangs, self._time
        elif not self._is_failing() and self._time > self._hung + _MOMENT_SECONDS:
            self._hangs = []

    def wants_timing(self) -> dict[str, int] | None:
        """Communicators whose operations should be timed, and from which sequence number on; None for nothing."""
        return self._slow.timing

    def wants_stacks(self) -> list[int]:
        """Suspects whose stacks would help, as long as they were not given."""
        return [
            number
            for verdict in self._standing
            for number in verdict.finding.suspects[:_SUSPECTS_WITH_STACKS]
            if number not in self._stacks
        ]

    def add_stack(self, rank: int, text: str) -> None:
        """The stack of a suspect, or why there is none. It stays with the finding."""
        self._stacks[rank] = text

    def _forget(self) -> None:
        self._generation = -1
        self._time = float("-inf")
        self._next_sample = float("-inf")
        for known in (
            self._ranks,
            self._silent,
            self._dead,
            self._phases,
            self._blocked,
            self._leaving,
            self._standing,
            self._hangs,
            self._stacks,
        ):
            known.clear()
        self._slow_verdicts = []
        self._transport.clear()
        self._slow.clear()

    def _follow(self, observation: Observation) -> None:
        """Take over what changed, and who is dead or blocked beyond the gate.

        A newer generation, or another run, starts from nothing.
        """
        if observation.run_id != self._run_id or observation.time < self._time:
            self._forget()
            self._run_id = observation.run_id
        elif observation.time > self._time + 2 * self._thresholds.slow_seconds:
            self._transport.clear()  # nobody has looked for a while: no rate can be told from before
            self._slow.clear()
            self._next_sample = observation.time
        silent = set(observation.silent_nodes)
        changed: Set[int] | None = observation.changed
        if changed is None or silent != self._silent or not self._ranks:
            changed = self._ranks.keys() | observation.ranks.keys()
        entries = observation.ranks
        newest = max((entries[number].generation for number in changed if number in entries), default=-1)
        if newest > self._generation:
            self._forget()
            self._generation = newest
            changed = entries.keys()
        self._time, self._silent = observation.time, silent
        self._look_at(entries, changed)

    def _look_at(self, entries: dict[int, Rank], changed: Set[int]) -> None:
        """This runs for every rank every second: it is written for speed."""
        gate, generation, silent = self._thresholds.hang_seconds, self._generation, self._silent
        self._blocked -= changed
        self._dead -= changed
        for number in changed:
            rank = entries.get(number)
            if rank is None or rank.generation != generation or (silent and rank.node in silent):
                self._ranks.pop(number, None)
                continue
            self._ranks[number] = rank
            if rank.phase:
                self._phases[number] = rank.phase, self._time
            if rank.process.exit_reason not in _NO_FAILURE:
                self._leaving.setdefault(number, self._time)
            if rank.process.life in _GONE:
                self._dead.add(number)
                continue
            for communicator in rank.communicators:
                age = communicator.open_seconds
                if age is not None and age >= gate:
                    self._blocked.add(number)
                    break

    def _recent_phases(self) -> dict[int, str]:
        since = self._time - self._thresholds.hang_seconds
        self._phases = {number: declared for number, declared in self._phases.items() if declared[1] > since}
        return {number: phase for number, (phase, _) in self._phases.items()}

    def _settle(self, verdicts: list[Verdict], observation: Observation) -> None:
        """Let standing findings stand: they change with their evidence, not with every doubt, and keep their time."""
        standing = []
        before = list(self._standing)
        for verdict in verdicts:
            old = next((old for old in before if _same_trouble(old, verdict)), None)
            if old is not None:
                before.remove(old)
                if _contradicts(verdict, old) and not _is_surer(verdict, old):
                    verdict = old
                else:
                    verdict = replace(verdict, finding=replace(verdict.finding, time=old.finding.time))
            standing.append(verdict)
        for old in before:
            # Whoever it names is out of view: no reason to take it back, if one to be less sure.
            if any(number in observation.ranks and number not in self._ranks for number in old.finding.suspects):
                confidence = max(old.finding.confidence, Confidence.MEDIUM, key=lambda level: level.order)
                standing.append(replace(old, finding=replace(old.finding, confidence=confidence)))
        standing.sort(key=lambda verdict: verdict.finding.level == "notice")
        self._standing = standing
        suspects = {number for verdict in standing for number in verdict.finding.suspects}
        for number in self._stacks.keys() - suspects:
            del self._stacks[number]

    def _dressed(self, finding: Finding) -> Finding:
        """The finding with the stacks of its suspects, as a copy that is the caller's own."""
        stacks = {number: self._stacks[number] for number in finding.suspects if number in self._stacks}
        return replace(finding, stacks=stacks, suspects=list(finding.suspects), evidence=list(finding.evidence))


def _same_trouble(old: Verdict, new: Verdict) -> bool:
    if old.kind != new.kind:
        return False
    if old.finding.suspects and new.finding.suspects:
        return not set(old.finding.suspects).isdisjoint(new.finding.suspects)
    return old.finding.communicator == new.finding.communicator


def _is_surer(new: Verdict, old: Verdict) -> bool:
    return new.finding.confidence.order < old.finding.confidence.order


def _contradicts(new: Verdict, old: Verdict) -> bool:
    return _claim(new.finding) != _claim(old.finding)


def _claim(finding: Finding) -> tuple[str, str, set[int]]:
    return finding.code, finding.communicator, set(finding.suspects)
