"""The analyzer's memory of one generation of a job's ranks: who is in view, and which verdicts stand."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from .. import words
from ..columns import RankColumns
from ..model import Confidence
from ..stacks import sides_of
from .view.exit_reasons import LEFT, SAME_SECONDS, has_failed, is_secondary, stands_still
from .view.histories import CallHistories
from .view.work import Work

if TYPE_CHECKING:
    from ..model import Finding, Observation, Rank
    from .slowness.slow import SlowWatch
    from .view.job import Sample, Verdict

_NO_FAILURE = ("", *LEFT)  # exit reasons
_SAMPLES = 16
_MOMENT_SECONDS = 2.5  # agents poll once a second
_ENDING_SECONDS = 20.0  # that a process may take to end, once it has said why


@dataclass(slots=True)
class Memory:
    """The memory of one generation of a job's ranks."""

    slow: SlowWatch
    run_id: str = ""
    generation: int = -1
    time: float = float("-inf")
    next_sample: float = float("-inf")
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_SAMPLES))  # of the transport
    work: Work = field(default_factory=Work)
    histories: CallHistories = field(default_factory=CallHistories)
    ranks: RankColumns = field(default_factory=lambda: RankColumns.of({}))  # those that are in view
    first_seen: dict[int, float] = field(default_factory=dict)  # of these, and those that were
    dead: set[int] = field(default_factory=set)
    is_blocked: bool = False  # a rank has an operation beyond the hang gate
    waits_elsewhere: bool = False  # a rank may wait in what no group counts
    leaving: dict[int, float] = field(default_factory=dict)  # ranks that fail, and since when they are known to
    phases: dict[int, tuple[str, float]] = field(default_factory=dict)  # declared by ranks, and when last
    current: list[Verdict] = field(default_factory=list)
    recent_hangs: list[Verdict] = field(default_factory=list)  # that stand, or stood a moment ago
    last_hang_time: float = float("-inf")  # when they stood last
    slow_verdicts: list[Verdict] = field(default_factory=list)
    no_progress_verdicts: list[Verdict] = field(default_factory=list)
    unlike_types: dict[str, Verdict] = field(default_factory=dict)  # by process group
    stacks: dict[int, str] = field(default_factory=dict)

    def forget_times(self) -> None:
        """The analyzer has not looked for a while: no rate can be told from before."""
        self.samples.clear()
        self.work.clear()
        self.slow.clear()
        self.next_sample = self.time

    def look_at(self, ranks: RankColumns, silent_nodes: Collection[str], gate: float) -> None:
        """Take over the ranks that are in view. `gate` is the hang gate in seconds."""
        silent = [number for number, name in enumerate(ranks.node_names) if name in silent_nodes]
        in_view = (ranks.places.generations == self.generation) & ~np.isin(ranks.places.nodes, silent)
        ranks = ranks.only(in_view)
        if not np.array_equal(ranks.numbers, self.ranks.numbers):
            for number in ranks:
                self.first_seen.setdefault(number, self.time)
        self.ranks = ranks
        self.phases.update({number: (phase, self.time) for number, phase in ranks.phases.items()})
        for number, reason in ranks.exit_reasons.items():
            if reason not in _NO_FAILURE:
                self.leaving.setdefault(number, self.time)
        are_alive = ranks.places.are_alive
        self.dead = set(ranks.numbers[~are_alive].tolist())
        self.is_blocked = bool((are_alive[ranks.rows.places] & (ranks.rows.open_seconds >= gate)).any())

    def recent_phases(self, seconds: float) -> dict[int, str]:
        """The phases that ranks have declared within these seconds."""
        since = self.time - seconds
        self.phases = {number: declared for number, declared in self.phases.items() if declared[1] > since}
        return {number: phase for number, (phase, _) in self.phases.items()}

    def failed_alive(self) -> dict[int, float]:
        """Ranks that have said what they failed of, have done nothing since, and live on; and how long ago."""
        failed = {}
        for number, since in self.leaving.items():
            rank = self.ranks.get(number)
            if rank is None or not rank.process.is_alive or not has_failed(rank):
                continue
            age = rank.process.exit_seconds if rank.process.exit_seconds is not None else self.time - since
            if stands_still(rank, age - SAME_SECONDS):
                failed[number] = age
        return failed

    def is_failing(self) -> bool:
        """Whether ranks are gone, or have said what they fail of and had no time yet to end."""
        return any(self.ranks.exit_reasons.get(number, "") not in LEFT for number in self.dead) or bool(self._ending())

    def are_more_to_go(self, dead: dict[int, Rank]) -> bool:
        """Whether those that are gone were told of a trouble, and some that may have told them are about to end."""
        return bool(self._ending() - dead.keys()) and all(is_secondary(rank) for rank in dead.values())

    def settle(self, verdicts: list[Verdict], observation: Observation) -> None:
        """Keep current findings: they change with their evidence, not with every doubt, and keep their time."""
        current = []
        before = list(self.current)
        for verdict in verdicts:
            old = next((old for old in before if _same_trouble(old, verdict)), None)
            if old is not None:
                before.remove(old)
                is_surer = verdict.finding.confidence.order < old.finding.confidence.order
                if _is_finding(old) and _claim(verdict.finding) != _claim(old.finding) and not is_surer:
                    verdict = old
                elif _is_finding(old) or not _is_finding(verdict):  # else a notice has become a finding now
                    verdict = replace(verdict, finding=replace(verdict.finding, time=old.finding.time))
            current.append(verdict)
        for old in before:
            # A suspect is out of view: that is no reason to take it back, but one to be less sure.
            if any(number in observation.ranks and number not in self.ranks for number in old.finding.suspects):
                confidence = max(old.finding.confidence, Confidence.MEDIUM, key=lambda level: level.order)
                current.append(replace(old, finding=replace(old.finding, confidence=confidence)))
        current.sort(key=lambda verdict: verdict.finding.level == "notice")
        self.current = current
        wanted = {number for verdict in current for number in (*verdict.finding.suspects, *verdict.stacks_of)}
        self.stacks = {number: text for number, text in self.stacks.items() if number in wanted}

    def keep_hangs(self) -> None:
        """For a moment: ranks that ran out of time are through with the operation before they say so."""
        hangs = [verdict for verdict in self.current if verdict.kind == "hang"]
        if hangs:
            self.recent_hangs, self.last_hang_time = hangs, self.time
        elif not self.is_failing() and self.time > self.last_hang_time + _MOMENT_SECONDS:
            self.recent_hangs = []

    def stacks_of(self) -> list[int]:
        """Ranks whose stacks would help and are not known. A process that is gone has none."""
        known = self.stacks.keys() | self.dead
        return [number for verdict in self.current for number in verdict.stacks_of if number not in known]

    def dressed(self, verdict: Verdict) -> Finding:
        """The finding with the stacks that belong to it, as a copy that is the caller's own."""
        finding = verdict.finding
        wanted = dict.fromkeys((*finding.suspects, *verdict.stacks_of))
        stacks = {number: self.stacks[number] for number in wanted if number in self.stacks}
        sides, evidence = finding.sides, list(finding.evidence)
        if verdict.witnesses and not finding.suspects and not sides and stacks.keys() == wanted.keys():
            sides = sides_of(stacks)
            if sides:
                evidence.append(f"by their stacks, {' and '.join(map(words.ranks, sides))} stand at different places")
        return replace(
            finding,
            stacks=stacks,
            sides=sides,
            suspects=list(finding.suspects),
            evidence=evidence,
            ended=[number for number in finding.suspects if number in self.dead],
            circle=list(finding.circle),
        )

    def _ending(self) -> set[int]:
        return {number for number, since in self.leaving.items() if self.time - since < _ENDING_SECONDS}


def _same_trouble(old: Verdict, new: Verdict) -> bool:
    if old.kind != new.kind or (_is_finding(old) and not _is_finding(new)):
        return False
    if old.finding.suspects and new.finding.suspects:
        return not set(old.finding.suspects).isdisjoint(new.finding.suspects)
    return old.finding.process_group == new.finding.process_group


def _is_finding(verdict: Verdict) -> bool:
    return verdict.finding.level == "finding"


def _claim(finding: Finding) -> tuple[str, str, set[int]]:
    return finding.code, finding.process_group, set(finding.suspects)
