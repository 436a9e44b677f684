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
    first, later = [], []
    for one in collective:
        if one.lost < ACCOUNTS * collective[0].lost:
            break
        late = [number for number in one.late if not _waits_elsewhere(number, one, slow)]
        if one.p_is_low(job.thresholds.transfer_share) or late == one.late:
            first.append(one)
        elif late:  # some of it is the consequence of another's trouble, which tells more
            one.late = late
            later.append(one)
    verdicts: list[Verdict] = []
    named: set[int] = set()
    for one in first + later:
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
    longer = grown(slow[0], measured)
    if not longer:
        return [_end_of_chain(job, transport, slow)]
    unmeasured = _unmeasured(job, measured)
    for group in unmeasured:
        if group.peers:  # who waits in it would seem to work
            for number in group.members:
                longer.pop(number, None)
    is_certain = all(group.peers for group in unmeasured)
    lost = slow[0].seconds - slow[0].normal_seconds
    late = sorted((n for n in longer if longer[n] >= ACCOUNTS * lost), key=lambda n: (-longer[n], n))
    if not late:
        edges = transport.busy(job, list(longer), job.thresholds.slow_seconds)
        return [_slow_transfer(job, slow[0], edges, Basis.COMPARISON)] if edges else []
    if 2 * len(late) > len(longer):
        return []
    one = next((each for each in slow if late[0] in each.rounds.mean), slow[0])
    one.late = late
    basis = Basis.COMPARISON if is_certain else Basis.REMAINDER
    return [_late_messages(job, one, longer, measured, basis)]


def _unmeasured(job: Job, measured: list[Slow]) -> list[Group]:
    """Process groups in use, and pairs, in which it is not known how long ranks wait."""
    known = {one.group.id for one in measured}
    return [
        group
        for group in job.groups.values()
        if group.id not in known and (group.idle_seconds < job.thresholds.slow_seconds).any()
    ]


def _late_messages(job: Job, one: Slow, longer: dict[int, float], measured: list[Slow], basis: Basis) -> Verdict:
    shares, _ = waiting_shares(measured)
    others = [number for number in longer if number not in one.late]
    least, most = min(shares[number] for number in others), max(shares[number] for number in others)
    facts = [
        f"rank {number} takes {words.seconds(longer[number])} longer by itself for each message of this pair than in "
        f"good times, and waits {words.percent(shares[number])} of the time"
        for number in one.late[:3]
    ]
    facts.append(
        f"of the others none takes more than {words.seconds(max(0.0, *(longer[number] for number in others)))} longer; "
        f"they wait {words.percent(least)} to {words.percent(most)} of the time"
    )
    return _finding(job, one, "TW-S1", one.late, basis, facts)


def _end_of_chain(job: Job, transport: Transport, slow: list[Slow]) -> Verdict:
    """On the rank at the end of the chain of waits, or its edge, where good times are not known."""
    one = slow[0]
    number = max(one.rounds.mean, key=lambda number: (one.rounds.mean[number], -number))
    waits = {n: peer for each in slow for n, peer in each.group.peers.items() if _is_long(n, each)}
    seen = set()
    while number in waits and number not in seen:
        seen.add(number)
        number = waits[number]
    edges = transport.busy(job, seen | {number}, job.thresholds.slow_seconds)
    if edges is not None or number in seen:
        return _slow_transfer(job, one, edges, Basis.COMPARISON)
    one.late = [number]
    return _finding(job, one, "TW-S1", [number], Basis.COMPARISON, [f"the chain of waits ends at rank {number}"])


def _is_long(number: int, one: Slow) -> bool:
    return one.rounds.mean.get(number, 0.0) >= ACCOUNTS * one.rounds.t_max


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
    rounds, group = one.rounds, one.group
    who = words.ranks(suspects)
    if code == "TW-S1":
        summary = f"{who} {words.verb(suspects, 'comes', 'come')} late to the operations of {group.title}"
        summary += f"; the others wait up to {words.seconds(rounds.t_max)} in each"
    elif code == "TW-S2":
        place = f" at {who}" if suspects else " at an unknown place"
        summary = (
            f"transfers of {group.title} are slow{place}: {words.seconds(rounds.t_max)} per operation at all ranks"
        )
    else:
        summary = f"{who} {words.verb(suspects, 'makes', 'make')} {group.title} slow, by late arrival and slow transfer"
    evidence = []
    if one.normal_seconds > 0:
        evidence.append(
            f"{words.seconds(one.seconds)} per operation, {words.seconds(one.normal_seconds)} in good times"
        )
    evidence.append(
        f"T over {rounds.num_rounds} rounds: {words.seconds(rounds.t_min)} (rank {rounds.latest}) to "
        f"{words.seconds(rounds.t_max)}"
    )
    evidence.append(
        f"P = {one.p:.2f}"
        if rounds.p_is_valid
        else "P means nothing here: rooted or pairwise rounds, or a group of two; who waits for whom decides"
    )
    evidence += facts
    untimed = [number for number in group.members if number not in rounds.mean]
    if untimed:
        evidence.append(f"no times of {words.ranks(untimed)}")
    victims = len(group.members) - len(suspects)
    return job.verdict(
        "slow", code, group, suspects, summary, evidence, basis, victims=victims, is_incomplete=bool(untimed)
    )


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
            fact += (
                f"; it used {used[number]:.2f} CPUs and waited for a CPU {words.percent(queued[number])} of the time"
            )
        facts.append(fact)
    return facts
