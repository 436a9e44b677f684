"""Verdicts on slow process groups: late ranks (S1), a slow transfer (S2) or both (S3)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from ... import words
from ..view.confidence import Basis
from .held_back import held_back, shares
from .slow_group import ACCOUNTS, grown, waiting_shares

if TYPE_CHECKING:
    from ...model import Code
    from ..view.groups import Group
    from ..view.job import Job
    from ..view.transport import Blame, Transport
    from ..view.verdict import Verdict
    from .held_back import Poll
    from .slow_group import Slow

_MAX_FINDINGS = 3


def judge(job: Job, transport: Transport, measured: list[Slow], history: Sequence[Poll]) -> list[Verdict]:
    """Verdicts on the process groups that lose time, except where others explain the loss; none where none does."""
    slow = sorted((one for one in measured if one.accounts), key=lambda one: (-one.lost, one.group.title, one.group.id))
    collective = [one for one in slow if not one.group.peers]
    if slow and not collective:
        return _pairwise(job, transport, slow, measured)
    verdicts: list[Verdict] = []
    named: set[int] = set()
    for one in collective:
        if one.lost < ACCOUNTS * collective[0].lost:
            break
        are_victims = any(_waits_elsewhere(number, one, slow) for number in one.late)
        if are_victims and not one.p_is_low(job.thresholds.transfer_share):
            continue
        verdict = _verdict(job, transport, one, history)
        suspects = set(verdict.finding.suspects)
        if not verdicts or (suspects and not suspects & named):
            verdicts.append(verdict)
            named |= suspects
    return verdicts[:_MAX_FINDINGS]


def _waits_elsewhere(number: int, one: Slow, slow: list[Slow]) -> bool:
    """Whether a late rank is late because it waits in another process group."""
    return any(
        other is not one and other.rounds.mean.get(number, 0.0) / other.seconds >= ACCOUNTS * one.late_by
        for other in slow
    )


def _pairwise(job: Job, transport: Transport, slow: list[Slow], measured: list[Slow]) -> list[Verdict]:
    """Sends and receives alone lose time: who takes longer between them than in good times, unless all do; or edges."""
    unmeasured = _unmeasured(job, measured)
    unknown = {number for group in unmeasured if group.peers for number in group.members}  # they may wait in these
    longer = {number: seconds for number, seconds in grown(slow[0], measured).items() if number not in unknown}
    lost = slow[0].seconds - slow[0].normal_seconds
    late = sorted((n for n in longer if longer[n] >= ACCOUNTS * lost), key=lambda n: (-longer[n], n))
    if not late:
        edges = transport.busy(job, list(longer), job.thresholds.slow_seconds)
        return [_slow_transfer(job, slow[0], edges, Basis.COMPARISON)] if edges else []
    if 2 * len(late) > len(longer):
        return []
    one = next((each for each in slow if late[0] in each.rounds.mean), slow[0])
    one.late = late
    is_certain = all(group.peers for group in unmeasured)
    basis = Basis.COMPARISON if is_certain else Basis.REMAINDER
    return [_finding(job, one, "TW-S1", late, basis, _lateness(late, longer, waiting_shares(measured)[0]))]


def _unmeasured(job: Job, measured: list[Slow]) -> list[Group]:
    """Process groups in use, and pairs, in which it is not known how long ranks wait."""
    known = {one.group.id for one in measured}
    return [
        group
        for group in job.groups.values()
        if group.id not in known and (group.idle_seconds < job.thresholds.slow_seconds).any()
    ]


def _lateness(late: list[int], longer: dict[int, float], shares: dict[int, float]) -> list[str]:
    facts = [
        f"rank {number} takes {words.seconds(longer[number])} longer by itself for each message of this pair than in "
        f"good times, and waits {words.percent(shares[number])} of the time"
        for number in late[:3]
    ]
    others = [number for number in longer if number not in late]
    waits = [shares[number] for number in others]
    most = words.seconds(max(0.0, *(longer[number] for number in others)))
    facts.append(
        f"none of the others takes more than {most} longer; they wait {words.percent(min(waits))} to "
        f"{words.percent(max(waits))} of the time"
    )
    return facts


def _verdict(job: Job, transport: Transport, one: Slow, history: Sequence[Poll]) -> Verdict:
    """Processes kept from running decide; else P where it is valid, and edges before pairwise waits where it is not."""
    thresholds, rounds = job.thresholds, one.rounds
    edges = transport.busy(job, list(one.group.members), thresholds.slow_seconds)
    limited = held_back(job, one, history)
    if limited:
        return _finding(job, one, "TW-S1", list(limited), Basis.STATE, list(limited.values()))
    if rounds.p_is_valid:
        if one.p >= thresholds.compute_share and one.late:
            return _finding(job, one, "TW-S1", one.late, Basis.STATE, _waits(job, one, history))
        if one.p_is_low(thresholds.transfer_share):
            return _slow_transfer(job, one, edges, Basis.STATE)
        suspects = one.late + [number for number in (edges.suspects if edges else []) if number not in one.late]
        facts = _waits(job, one, history) + (edges.evidence if edges else [])
        return _finding(job, one, "TW-S3", suspects, Basis.COMPARISON, facts)
    if edges is None and rounds.t_max - rounds.t_min >= thresholds.compute_share * rounds.t_max and one.late:
        return _finding(job, one, "TW-S1", one.late, Basis.COMPARISON, _waits(job, one, history))
    return _slow_transfer(job, one, edges, Basis.COMPARISON)


def _slow_transfer(job: Job, one: Slow, edges: Blame | None, basis: Basis) -> Verdict:
    untimed = [number for number in one.group.members if number not in one.rounds.mean]
    if edges is None and untimed and 2 * len(untimed) < one.group.size:
        fact = "no edge stands out, and the ranks with times wait alike: it may be for one without"
        return _finding(job, one, "TW-S1", untimed, Basis.REMAINDER, [fact])
    if edges is None:
        fact = "no edge stands out" if job.edges else "there are no counters of edges to place it"
        return _finding(job, one, "TW-S2", [], basis, [fact])
    return _finding(job, one, "TW-S2", edges.suspects, max(basis, edges.basis), edges.evidence)


def _finding(job: Job, one: Slow, code: Code, suspects: list[int], basis: Basis, facts: list[str]) -> Verdict:
    rounds, group, who = one.rounds, one.group, words.ranks(suspects)
    most = words.seconds(rounds.t_max)
    summary = f"{who} {words.verb(suspects, 'makes', 'make')} {group.title} slow, by late arrival and slow transfer"
    if code == "TW-S1":
        comes = words.verb(suspects, "comes", "come")
        summary = f"{who} {comes} late to the operations of {group.title}; the others wait up to {most} in each"
    elif code == "TW-S2":
        place = who if suspects else "an unknown place"
        summary = f"transfers of {group.title} are slow at {place}: {most} per operation at all ranks"
    told = []
    if one.normal_seconds > 0:
        now, usual = words.seconds(one.seconds), words.seconds(one.normal_seconds)
        told.append(f"{now} per operation, {usual} in good times")
    told.append(f"T over {rounds.num_rounds} rounds: {words.seconds(rounds.t_min)} (rank {rounds.latest}) to {most}")
    nothing = "P means nothing here: rooted or pairwise rounds, or a group of two; who waits for whom decides"
    told.append(f"P = {one.p:.2f}" if rounds.p_is_valid else nothing)
    untimed = [number for number in group.members if number not in rounds.mean]
    rest = [f"no times of {words.ranks(untimed)}"] if untimed else []
    return job.verdict(
        "slow", code, group, suspects, summary, [*told, *facts, *rest], basis,
        victims=len(group.members) - len(suspects), is_incomplete=bool(untimed),
    )  # fmt: skip


def _waits(job: Job, one: Slow, history: Sequence[Poll]) -> list[str]:
    """The kernel's facts on the late ranks meanwhile."""
    mean = one.rounds.mean
    used = shares(job, one, history, lambda places: places.cpu_seconds)
    queued = shares(job, one, history, lambda places: places.wait_seconds)
    facts = []
    for number in one.late[:3]:
        fact = f"rank {number} waits {words.seconds(mean[number])} per operation, the median rank "
        fact += words.seconds(median(mean.values()))
        if number in used:
            waited = words.percent(queued[number])
            fact += f"; it used {used[number]:.2f} CPUs and waited for a CPU {waited} of the time"
        facts.append(fact)
    return facts
