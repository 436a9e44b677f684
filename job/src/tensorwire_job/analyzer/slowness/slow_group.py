"""Process groups that were timed while the job was slow: whose ranks are late, and what kept them.

P is after CCL-D (arXiv 2605.04478). In a pipeline all stages wait for the slowest one. T of messages alone says little:
the stages wait for each other when all is well, the first and the last for longer than the rest, and longer yet where
all of them have more to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import inf, nan
from statistics import median
from typing import TYPE_CHECKING

from ... import words

if TYPE_CHECKING:
    from ..view.groups import Group
    from ..view.job import Job
    from .throughput import Rounds, Throughput

ACCOUNTS = 0.5
"""A process group, or a wait elsewhere, explains a loss from this share of the lost time on."""

_LATE = 0.25  # of the way from Tmin to Tmax: ranks below come late
_PAIRWISE = 0.1  # share of rounds from which P means nothing
_THROTTLED = 0.1  # of the time
_STOPPED = 0.25  # of the looks
_STARVED = 0.3  # of the time
_EXPLAINS = 0.5  # of the time that the others wait for the latest


class Slow:
    """One process group that was timed while the job was slow.

    Attributes:
        mean: T of each member that was timed.
        usual: T of the members in good times; empty: not known.
        late: the ranks that wait least, the latest first; none where they are no minority.
        seconds: per operation at present.
        good_seconds: per operation in good times.
        lost: the share of the time that is lost in here.
        late_by: the share of the time that the others wait for the latest.
        p: the share of the lost time that is due to late arrival; NaN where that means nothing.
    """

    def __init__(self, group: Group, throughput: Throughput, rounds: Rounds) -> None:
        self.group = group
        self.mean, self.usual = rounds.mean, throughput.usual()
        self.untimed = [number for number in group.members if number not in self.mean]
        self.seconds, self.good_seconds = throughput.seconds, throughput.good_seconds
        self.num_rounds = int(rounds.counts.min())
        self.t_min, self.t_max = min(self.mean.values()), max(self.mean.values())
        t_base = min(self.usual.values(), default=min(float(rounds.least.min()), self.good_seconds))
        bound = self.t_min + _LATE * (self.t_max - self.t_min)
        late = sorted((n for n in self.mean if self.mean[n] <= bound), key=lambda n: (self.mean[n], n))
        self.latest = late[0]
        self.late = late if 2 * len(late) <= len(self.mean) else []
        self.lost = (self.t_max - t_base) / self.seconds
        self.late_by = (self.t_max - self.t_min) / self.seconds
        p_is_valid = len(self.mean) > 2 and rounds.pairwise.max() <= _PAIRWISE * rounds.counts.max()
        self.p = (self.t_max - self.t_min) / ((self.t_max - min(t_base, self.t_min)) or 1.0) if p_is_valid else nan
        self.accounts = throughput.is_slow and self.lost >= ACCOUNTS * (1.0 - self.good_seconds / self.seconds)


def own_time(one: Slow, measured: Iterable[Slow]) -> tuple[dict[int, float], dict[int, float]]:
    """For ranks that send or receive: the seconds that they take longer by themselves for each message of a pair than
    in good times, and the share of the time that they wait now.

    Collectives count as well. In good times they are not timed, so that they seem to take nothing: a rank that waits
    in them seems to take longer by itself then, and less longer now.
    """
    now: dict[int, float] = defaultdict(float)
    before: dict[int, float] = defaultdict(float)
    for each in measured:
        for number, mean in each.mean.items():
            now[number] += mean / each.seconds
            if each.group.peers:
                before[number] += each.usual.get(number, inf) / each.good_seconds
    waits = {number: min(now[number], 1.0) for number, share in before.items() if share < inf}
    longer = {n: one.seconds * (1.0 - waits[n]) - one.good_seconds * (1.0 - min(before[n], 1.0)) for n in waits}
    return longer, waits


def held_back(job: Job, one: Slow) -> dict[int, str]:
    """Members that were kept from running far more than the others, the most first, each with the fact.

    Their transfers are slow too, so that P looks mixed. A rank that waits for a CPU has to be late as well, and about
    as long as the others wait for it.
    """
    time, ranks, work = job.time, job.columns, job.work
    throttled = work.per_second(time, ranks, lambda ranks: ranks.places.throttled_seconds)
    stopped = work.looks(time, ranks, lambda places: places.are_stopped)
    starved = work.per_second(time, ranks, lambda ranks: ranks.places.wait_seconds)
    starvation = max(_STARVED, _EXPLAINS * min(one.late_by, 1.0))
    for found, least, members, told in (
        (throttled, _THROTTLED, one.mean, "was throttled by its CPU quota for {} of the time"),
        (stopped, _STOPPED, one.mean, "was stopped (state T) in {} of the polls"),
        (starved, starvation, one.late, "waited for a CPU for {} of the time: others had it"),
    ):
        ordinary = median(found.get(number, 0.0) for number in one.mean)
        far_above = [n for n in members if found.get(n, 0.0) >= least and found[n] > 2 * ordinary]
        if far_above:
            most_first = sorted(far_above, key=lambda number: (-found[number], number))
            return {n: f"rank {n} {told.format(words.percent(found[n]))}" for n in most_first}
    return {}
