"""The history of a job, in memory that does not grow with the length of the job."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from .. import words
from ..columns import RankColumns
from ..model import SETUPS, Observation, group_title
from ..numbered import Family, families
from .before import before
from .rank_status import statuses
from .stragglers import Stragglers

if TYPE_CHECKING:
    from ..columns import Places
    from ..model import Finding, ProcessGroup

MAX_INTERVALS = 240
_RECENT_POLLS = 10
_SLOW: Final = ("TW-S1", "TW-S2", "TW-S3")
_NOTHING = Observation(0.0, "", 0, {})
UNSEEN = 255
"""The state of a rank that no agent has seen."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Rounds per second, each process group counted by its slowest rank."""

    low: float
    middle: float
    high: float


@dataclass(slots=True)
class Interval:
    """The time between two observations, or several such times in one.

    Attributes:
        start, end: on the analyzer's clock.
        states: one byte per rank: an index into STATES, or UNSEEN.
        rates: of each family that the observations tell of.
    """

    start: float
    end: float
    states: bytes
    rates: dict[Family, Rate]


@dataclass(slots=True)
class Episode:
    """A finding as it was last told, and when it was told first and last."""

    finding: Finding
    first: float
    last: float

    @property
    def begin(self) -> float:
        """When the trouble began, as far as that is known; else when it was told first."""
        return self.first if self.finding.since is None else min(self.finding.since, self.first)


class History:
    """Takes the observations and findings of a job in the order of time. Not safe for concurrent use.

    At most MAX_INTERVALS intervals are kept: when there are more, neighbours are merged, and the more serious of two
    states stays.

    Args:
        with_past: begin with the time before the first observation, as far as its pages tell it.
        recorded: the observations are of a recording, so that "now" is when that ended.

    Attributes:
        polled_from: time of the first observation.
        last, previous: the newest observation and the one before it.
        statuses: where each rank stands in the newest one.
        timed: the newest one that holds timings.
        stragglers: ranks that come late by a little.
        episodes: findings by identity (code, level, process group, suspects), in the order of their beginnings.
    """

    def __init__(self, *, with_past: bool = False, recorded: bool = False) -> None:
        self._with_past = with_past
        self.recorded = recorded
        self.polled_from = 0.0
        self.intervals: list[Interval] = []
        self.last: Observation | None = None
        self.previous: Observation | None = None
        self.statuses = statuses(_NOTHING)
        self.timed: Observation | None = None
        self.episodes: dict[tuple[object, ...], Episode] = {}
        self.stragglers = Stragglers()
        self._completed: dict[str, int] = {}
        self._recent: deque[tuple[float, dict[Family, Rate]]] = deque(maxlen=_RECENT_POLLS)
        self._waited: deque[tuple[float, Places]] = deque(maxlen=_RECENT_POLLS)
        self._open_span = 0.0

    def add(self, observation: Observation, findings: Sequence[Finding] = ()) -> list[Finding]:
        """Take one observation and the findings at that time. Returns those that were not there before."""
        if self.last is None:
            self.polled_from = observation.time
            if self._with_past:
                self._begin_with(before(observation))
        ranks = RankColumns.of(observation.ranks)
        observation = replace(observation, ranks=ranks)  # from here on all read the same columns
        self.previous, self.last = self.last, observation
        self.statuses = statuses(observation, self.previous)
        if ranks.rows.timed.any():
            self.timed = observation
        start = self.previous.time if self.previous else self._end_of_past(observation)
        self.stragglers.add(observation)
        self._waited.append((observation.time, ranks.places))
        rates = self._rates(ranks, observation.time - start)
        self._recent.append((observation.time - start, rates))
        self._append(Interval(start, observation.time, self._states(observation), rates))
        started = []
        for finding in findings:
            episode = self.episodes.get(finding.identity())
            if episode is None:
                self.episodes[finding.identity()] = Episode(finding, finding.time, observation.time)
                started.append(finding)
            else:
                episode.finding, episode.last = finding, observation.time
        return started

    def cpu_wait(self) -> dict[int, float]:
        """The share of the time of the last few polls in which a rank's process was runnable and did not run."""
        if not self._waited or self._waited[-1][0] <= self._waited[0][0]:
            return {}
        (start, before), (end, now) = self._waited[0], self._waited[-1]
        numbers, here, then = np.intersect1d(now.numbers, before.numbers, assume_unique=True, return_indices=True)
        shares = np.clip((now.wait_seconds[here] - before.wait_seconds[then]) / (end - start), 0.0, 1.0)
        same = now.pids[here] == before.pids[then]
        return dict(zip(numbers[same].tolist(), shares[same].tolist(), strict=True))

    def rates(self) -> dict[Family, float]:
        """Operations per second of each kind of process group over the last few polls, the most first."""
        found = {}
        for family in self._recent[-1][1] if self._recent else ():
            seen = [(seconds, rates[family].middle) for seconds, rates in self._recent if family in rates]
            found[family] = sum(seconds * rate for seconds, rate in seen) / (sum(s for s, _ in seen) or 1.0)
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    @property
    def up_seconds(self) -> float:
        """How long the job has run, as far as its ranks tell; else how long it was watched."""
        last = self.last
        if last is None:
            return 0.0
        setups, ages = self.ranks.setups
        running = ages[setups == SETUPS.index("initialized")]
        return float(np.fmax.reduce(running, initial=last.time - self.intervals[0].start))

    @property
    def ranks(self) -> RankColumns:
        """The ranks as they were seen last."""
        return RankColumns.of(self.last.ranks if self.last else {})

    @property
    def is_over(self) -> bool:
        """Ranks were seen, and none of them lives any more."""
        return bool(self.ranks) and not self.ranks.places.are_alive.any()

    @property
    def ended_seconds(self) -> float:
        """How long ago the last rank of a job that is over was heard of."""
        ages = np.nan_to_num(self.ranks.places.gone_seconds)
        return float(ages.min()) if len(ages) else 0.0

    def age(self, finding: Finding) -> str:
        """The time since the trouble began: "for 12 s" while it lasts, "for 20 s, until 5 min 3 s ago" once it is over.

        A loss is told as "2 h 5 min ago", and slowness whose beginning is not known as "found 12 s ago".
        """
        now = self.last.time if self.last else finding.time
        begin = finding.time if finding.since is None else finding.since
        text = words.seconds(max(now - begin, 0.0))
        if finding.code == "TW-LOST" or (self.is_over and now - begin <= self.ended_seconds):
            return self.ago(now - begin)
        if finding.since is None and finding.code in _SLOW and self.stands(finding):
            return f"found {self.ago(now - begin)}"
        if self.stands(finding) and not self.is_over:
            return f"for {text} when the recording ended" if self.recorded else f"for {text}"
        end = now - self.ended_seconds if self.is_over else self.episodes[finding.identity()].last
        return f"for {words.seconds(max(end - begin, 0.0))}, until {self.ago(now - end)}"

    def ago(self, seconds: float) -> str:
        """So long before now or, in a recording, before its end."""
        text = words.seconds(max(seconds, 0.0))
        return f"{text} before the recording ended" if self.recorded else f"{text} ago"

    def stands(self, finding: Finding) -> bool:
        """Whether it was still found when the job was last polled."""
        episode = self.episodes.get(finding.identity())
        return episode is None or self.last is None or episode.last >= self.last.time

    def _begin_with(self, past: Sequence[Observation]) -> None:
        for earlier, one in pairwise(past):
            self.statuses = statuses(one, earlier)
            self.intervals.append(Interval(earlier.time, one.time, self._states(one), _remembered(one)))

    def _end_of_past(self, observation: Observation) -> float:
        return self.intervals[-1].end if self.intervals else observation.time

    def _append(self, interval: Interval) -> None:
        # The newest interval grows until it spans as much time as the others; the first poll spans none at all.
        if self.intervals and self.intervals[-1].end - self.intervals[-1].start <= self._open_span:
            self.intervals[-1] = _merge(self.intervals[-1], interval)
            return
        self.intervals.append(interval)
        if len(self.intervals) > MAX_INTERVALS:
            pairs = [self.intervals[i : i + 2] for i in range(0, len(self.intervals), 2)]
            self.intervals = [_merge(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
            self._open_span = (interval.end - self.intervals[0].start) / MAX_INTERVALS

    def _states(self, observation: Observation) -> bytes:
        numbers = self.statuses.numbers
        are_known = (numbers >= 0) & (numbers < observation.world_size)
        states = np.full(observation.world_size, UNSEEN, np.uint8)
        states[numbers[are_known]] = self.statuses.columns.states[are_known]
        return states.tobytes()

    def _rates(self, ranks: RankColumns, elapsed: float) -> dict[Family, Rate]:
        completed: dict[str, int] = {}
        groups: dict[str, tuple[str, int]] = {}
        for row, least in _slowest_rows(ranks):
            identity, name, size = ranks.group(row)
            completed[identity] = least
            groups[identity] = group_title(name), size
        family_of = families(groups.values())
        rates: dict[Family, list[float]] = defaultdict(list)
        for key, count in completed.items():
            before = self._completed.get(key)
            if before is not None and count >= before and elapsed > 0:
                rates[family_of[groups[key]]].append((count - before) / elapsed)
        self._completed = completed
        return {family: Rate(min(values), median(values), max(values)) for family, values in rates.items()}


def _slowest_rows(ranks: RankColumns) -> list[tuple[int, int]]:
    """A row of each process group, and how many operations its slowest member has completed."""
    numbers, completed = ranks.rows.groups, ranks.rows.completed
    order = np.lexsort((completed, numbers))
    ends = np.flatnonzero(numbers[order][1:] != numbers[order][:-1])
    rows = order[np.append(0, ends + 1)] if len(order) else order
    return list(zip(rows.tolist(), completed[rows].tolist(), strict=True))


def _remembered(observation: Observation) -> dict[Family, Rate]:
    """Rates before the first poll: those of good times that ranks remember, where all of a group went on."""
    groups: dict[str, list[ProcessGroup]] = defaultdict(list)
    for rank in observation.ranks.values():
        for group in rank.process_groups:
            groups[group.id].append(group)
    family_of = families((group_title(members[0].name), members[0].size) for members in groups.values())
    rates: dict[Family, list[float]] = defaultdict(list)
    for members in groups.values():
        known = [member.baseline_rate for member in members if member.baseline_rate]
        if known:
            goes_on = all(member.idle_seconds == 0.0 for member in members)
            rates[family_of[group_title(members[0].name), members[0].size]].append(min(known) if goes_on else 0.0)
    return {family: Rate(min(values), median(values), max(values)) for family, values in rates.items()}


def _merge(a: Interval, b: Interval) -> Interval:
    shorter, longer = sorted((a.states, b.states), key=len)
    states = _graver(shorter, longer[: len(shorter)]) + longer[len(shorter) :]
    rates = dict(a.rates)
    for family, rate in b.rates.items():
        other = rates.get(family)
        rates[family] = rate if other is None else _mean(other, a.end - a.start, rate, b.end - b.start)
    return Interval(a.start, b.end, states, rates)


def _graver(one: bytes, other: bytes) -> bytes:
    """The more serious state of each rank; the known one, where it was unseen once."""
    a, b = np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)
    return np.where((a == UNSEEN) | (b == UNSEEN), np.minimum(a, b), np.maximum(a, b)).tobytes()


def _mean(a: Rate, a_seconds: float, b: Rate, b_seconds: float) -> Rate:
    share = a_seconds / (a_seconds + b_seconds) if a_seconds + b_seconds else 0.5
    return Rate(min(a.low, b.low), share * a.middle + (1 - share) * b.middle, max(a.high, b.high))
