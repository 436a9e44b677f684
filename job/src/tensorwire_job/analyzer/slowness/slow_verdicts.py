"""Verdicts on slow process groups: late ranks (S1), a slow transfer (S2) or both (S3); whose ranks are late, and what
kept them.

P is after CCL-D (arXiv 2605.04478). In a pipeline all stages wait for the slowest one. T of messages alone says little:
the stages wait for each other when all is well, the first and the last for longer than the rest, and longer yet where
all of them have more to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf, isnan, nan
from statistics import median
from typing import TYPE_CHECKING

from ... import words
from ...confidence import Basis
from ..view import transport

if TYPE_CHECKING:
    from ...model import Code
    from ..view.groups import Group
    from ..view.job import Job, Verdict
    from ..view.transport import Blame
    from .throughput import Rounds, Throughput

ACCOUNTS = 0.5
"""A process group, or a wait elsewhere, explains a loss from this share of the lost time on."""

_LATE = 0.25  # of the way from Tmin to Tmax: ranks below come late
_PAIRWISE = 0.1  # share of rounds from which P means nothing
_THROTTLED = 0.1  # of the time
_STOPPED = 0.25  # of the looks
_STARVED = 0.3  # of the time
_STARVED_FACT = "waited for a CPU for {} of the time: others had it; it used {:.2f} CPUs, the median rank "
_EXPLAINS = 0.5  # of the time that the others wait for the latest
_MAX_FINDINGS = 3


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
    used = work.per_second(time, ranks, lambda ranks: ranks.places.cpu_seconds)
    usual = median(used.get(number, 0.0) for number in one.mean)
    starvation = max(_STARVED, _EXPLAINS * min(one.late_by, 1.0))
    for found, least, members, told in (
        (throttled, _THROTTLED, one.mean, "was throttled by its CPU quota for {} of the time"),
        (stopped, _STOPPED, one.mean, "was stopped (state T) in {} of the polls"),
        (starved, starvation, one.late, _STARVED_FACT + f"{usual:.2f}"),
    ):
        ordinary = median(found.get(number, 0.0) for number in one.mean)
        far_above = [n for n in members if found.get(n, 0.0) >= least and found[n] > 2 * ordinary]
        if far_above:
            most_first = sorted(far_above, key=lambda number: (-found[number], number))
            return {n: f"rank {n} {told.format(words.percent(found[n]), used.get(n, 0.0))}" for n in most_first}
    return {}


def judge(job: Job, measured: list[Slow]) -> list[Verdict]:
    """Verdicts on the process groups that lose time, except where others explain the loss; none where none does."""
    slow = sorted((one for one in measured if one.accounts), key=lambda one: (-one.lost, one.group.title, one.group.id))
    collective = [one for one in slow if not one.group.peers]
    if slow and not collective:
        return _pairwise(job, slow, measured)
    verdicts: list[Verdict] = []
    named: set[int] = set()
    for one in collective:
        if one.lost < ACCOUNTS * collective[0].lost:
            break
        # A rank that waits in another process group is late because of that.
        others = [other for other in slow if other is not one]
        elsewhere = (other.mean.get(number, 0.0) / other.seconds for other in others for number in one.late)
        are_victims = any(share >= ACCOUNTS * one.late_by for share in elsewhere)
        if are_victims and not one.p <= job.thresholds.transfer_share:
            continue
        verdict = _verdict(job, one)
        suspects = set(verdict.finding.suspects)
        if not verdicts or (suspects and suspects.isdisjoint(named)):
            verdicts.append(verdict)
            named |= suspects
    return verdicts[:_MAX_FINDINGS]


def _pairwise(job: Job, slow: list[Slow], measured: list[Slow]) -> list[Verdict]:
    """Sends and receives alone lose time: who takes longer between them than in good times, unless all do; or edges."""
    known, window = {one.group.id for one in measured}, job.thresholds.slow_seconds
    others = [group for group in job.groups.values() if group.id not in known and (group.idle_seconds < window).any()]
    unknown = {number for group in others if group.peers for number in group.members}  # they may wait in these
    longer, waits = own_time(slow[0], measured)
    longer = {number: seconds for number, seconds in longer.items() if number not in unknown}
    least = ACCOUNTS * (slow[0].seconds - slow[0].good_seconds)
    late = sorted((n for n in longer if longer[n] >= least), key=lambda n: (-longer[n], n))
    if not late:
        edges = transport.busy(job, list(longer), window)
        return [_slow_transfer(job, slow[0], edges, Basis.COMPARISON)] if edges else []
    rest = [number for number in longer if number not in late]
    if len(late) > len(rest):
        return []
    facts = [
        f"rank {number} takes {words.seconds(longer[number])} longer by itself for each message of this pair than in "
        f"good times, and waits {words.percent(waits[number])} of the time"
        for number in late[:3]
    ]
    shares = [waits[number] for number in rest]
    facts.append(
        f"none of the others takes more than {words.seconds(max(0.0, *(longer[n] for n in rest)))} longer; they wait "
        f"{words.percent(min(shares))} to {words.percent(max(shares))} of the time"
    )
    one = next((each for each in slow if late[0] in each.mean), slow[0])
    is_certain = all(group.peers for group in others)
    return [_finding(job, one, "TW-S1", late, Basis.COMPARISON if is_certain else Basis.REMAINDER, facts, rest)]


def _verdict(job: Job, one: Slow) -> Verdict:
    """Processes kept from running decide; else P where it is valid, and edges before pairwise waits where it is not."""
    limited = held_back(job, one)
    if limited:
        return _finding(job, one, "TW-S1", list(limited), Basis.STATE, list(limited.values()))
    edges = transport.busy(job, list(one.group.members), job.thresholds.slow_seconds)
    least, basis, are_late = job.thresholds.compute_share, Basis.STATE, one.p
    if isnan(one.p):
        basis, are_late = Basis.COMPARISON, 0.0 if edges else (one.t_max - one.t_min) / (one.t_max or 1.0)
    if one.late and are_late >= least:
        return _finding(job, one, "TW-S1", one.late, basis, _waits(job, one))
    if not one.p > job.thresholds.transfer_share:  # or there is none
        return _slow_transfer(job, one, edges, basis)
    apart = transport.busy(job, list(one.group.members), job.thresholds.slow_seconds, one.late)
    suspects = one.late + (apart.suspects if apart else [])
    facts = _waits(job, one) + (edges.evidence if edges else [])
    return _finding(job, one, "TW-S3", suspects, Basis.COMPARISON, facts)


def _slow_transfer(job: Job, one: Slow, edges: Blame | None, basis: Basis) -> Verdict:
    if edges is not None:
        return _finding(job, one, "TW-S2", edges.suspects, max(basis, edges.basis), edges.evidence)
    if 0 < 2 * len(one.untimed) < one.group.size:
        fact = "no edge stands out, and the ranks with times wait alike: it may be for one without"
        return _finding(job, one, "TW-S1", one.untimed, Basis.REMAINDER, [fact])
    fact = "no edge stands out" if job.edges else "there are no counters of edges to place it"
    return _finding(job, one, "TW-S2", [], basis, [fact])


def _finding(
    job: Job, one: Slow, code: Code, suspects: list[int], basis: Basis, facts: list[str], others: Sequence[int] = ()
) -> Verdict:
    """`others` wait besides the members."""
    group, most, who = one.group, words.seconds(one.t_max), words.ranks(suspects)
    if code == "TW-S1":
        are_members, comes = group.members.keys() >= set(suspects), words.verb(suspects, "comes", "come")
        what = f"the operations of {group.title}" if are_members else "messages of a pipeline"
        summary = f"{who} {comes} late to {what}; the others wait up to {most} in each"
    elif code == "TW-S2":
        place = who if suspects else "an unknown place"
        summary = f"transfers of {group.title} are slow at {place}: {most} per operation at all ranks"
    else:
        makes = words.verb(suspects, "makes", "make")
        summary = f"{who} {makes} {group.title} slow, by late arrival and slow transfer"
    nothing = "P means nothing here: rooted or pairwise rounds, or a group of two; who waits for whom decides"
    told = [
        f"{words.seconds(one.seconds)} per operation, {words.seconds(one.good_seconds)} in good times",
        f"time in an operation: {words.seconds(one.t_min)} (rank {one.latest}) to {most} (T, {one.num_rounds} rounds)",
        nothing if isnan(one.p) else f"late arrival makes up {words.percent(one.p)} of the lost time (P = {one.p:.2f})",
        *facts,
        *([f"no times of {words.ranks(one.untimed)}"] if one.untimed else []),
    ]
    return job.verdict(
        "slow", code, group, suspects, summary, told, basis, is_incomplete=bool(one.untimed),
        victims=len({*group.members, *others}.difference(suspects)),
    )  # fmt: skip


def _waits(job: Job, one: Slow) -> list[str]:
    """The kernel's facts on the late ranks meanwhile."""
    used = job.work.per_second(job.time, job.columns, lambda ranks: ranks.places.cpu_seconds)
    queued = job.work.per_second(job.time, job.columns, lambda ranks: ranks.places.wait_seconds)
    ordinary = words.seconds(median(one.mean.values()))
    facts = []
    for number in one.late[:3]:
        fact = f"rank {number} waits {words.seconds(one.mean[number])} per operation, the median rank {ordinary}"
        if number in used:
            waited = words.percent(queued[number])
            fact += f"; it used {used[number]:.2f} CPUs and waited for a CPU {waited} of the time"
        facts.append(fact)
    return facts
