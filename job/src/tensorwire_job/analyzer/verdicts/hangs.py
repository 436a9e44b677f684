"""What stands still: the parts of the graph that are older than the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ... import words
from ..view import transport
from ..view.confidence import Basis
from ..view.job import is_waiting
from ..view.patience import LONG, recent
from ..view.states import States
from ..view.verdict import MAX_SUSPECTS
from ..view.waits import IN_INIT
from .hang_inside import all_entered
from .part import Part

if TYPE_CHECKING:
    from ...model import Finding, Rank
    from ..view.job import Job
    from ..view.verdict import Verdict
    from ..view.waits import Wait

_MAX_FINDINGS = 4
_MAX_PARTS = 32


def find_hangs(job: Job) -> list[Verdict]:
    """Verdicts on all that stands still; none while its oldest wait is younger than the gate, or bytes still move."""
    states = States(job, lambda wait: _is_ending(job, wait) or _moves(job, wait))
    gate = job.thresholds.hang_seconds
    found = [Part(job, states, part, waits).verdict() for part, waits in _parts(states)]
    old = [wait for wait in states.waits if wait.seconds >= gate]
    # All that have entered these go on elsewhere, as yet for no longer than may be meant.
    found += [_nobody_waits(job, wait) for wait in old if wait.missing and not (wait.pid or states.stuck[wait])]
    found = found or [all_entered(job, wait, len(wait.blocked)) for wait in old if _is_for_unseen(job, wait)]
    found = found or _left_behind(job)
    found.sort(key=lambda verdict: _importance(verdict.finding))
    return found[:_MAX_FINDINGS]


def _parts(states: States) -> list[tuple[set[int], list[Wait]]]:
    """The parts that stand still for longer than the gate, each with its waits: a few, with the most waiting ranks."""
    job, parts = states.job, states.graph.components()
    part_of = {vertex: index for index, part in enumerate(parts) for vertex in part}
    waits_of: list[list[Wait]] = [[] for _ in parts]
    for wait in states.waits:
        for index in {part_of[number] for number in wait.blocked if number in part_of}:
            waits_of[index].append(wait)
    found = [
        (part, waits)
        for part, waits in zip(parts, waits_of, strict=True)
        if any(not wait.is_any or _lacks_one(job, wait) for wait in waits)
        and max(wait.seconds for wait in waits) >= job.thresholds.hang_seconds
    ]
    found.sort(key=lambda each: sum(len(wait.blocked) for wait in each[1]), reverse=True)
    return found[:_MAX_PARTS]


def _importance(finding: Finding) -> tuple[bool, int, int, str]:
    return finding.level == "notice", -finding.victims, finding.confidence.order, finding.summary


def _lacks_one(job: Job, wait: Wait) -> bool:
    """Whether the few of which one may have to set a key, or to send a message, do nothing."""
    ranks = [job.ranks[number] for number in wait.missing if number in job.ranks]
    gate = job.thresholds.hang_seconds
    may_work = wait.seconds < LONG * gate
    works = any(job.doing(rank) or (may_work and job.is_busy(rank)) for rank in ranks)
    return 0 < len(ranks) <= len(wait.inside) and not works


def _is_ending(job: Job, wait: Wait) -> bool:
    """Whether a rank has entered or left the operation of late: it was this rank that the others waited for, however
    long that took, and they are about to leave as well."""
    group = wait.group
    if group is None or wait.missing:
        return False
    inside = np.isin(group.numbers, wait.inside)
    left = (group.enqueued >= wait.sequence) & (not wait.is_pairwise)  # and may be in the next one by now
    since_left = np.where(np.isnan(group.open_seconds), group.idle_seconds, group.open_seconds)
    ages = np.where(inside, group.open_seconds, np.where(left, since_left, np.nan))
    return bool((ages < recent(job)).any())


def _moves(job: Job, wait: Wait) -> bool:
    """Whether bytes still move in this operation: it is large, and nothing hangs.

    Ranks that complete other operations meanwhile may move bytes for those, so they do not count.
    """
    if wait.group is None:
        return False
    completing = job.columns.row_numbers[job.columns.rows.idle_seconds < recent(job)]
    still = set(wait.inside) - set(completing.tolist())
    return transport.progress(job, wait.group, still, recent(job)) >= transport.PROGRESS


def _nobody_waits(job: Job, wait: Wait) -> Verdict:
    inside, missing = wait.blocked, wait.missing
    return job.verdict(
        "hang", "TW-H1", wait.group, missing,
        f"{words.does(inside, 'has', 'have')} entered {wait.title}, and {words.verb(inside, 'goes', 'go')} on "
        f"elsewhere; {words.does(missing, 'has', 'have')} not entered it",
        [wait.told()], Basis.REMAINDER, victims=0, level="notice", seconds=wait.seconds,
    )  # fmt: skip


def _is_for_unseen(job: Job, wait: Wait) -> bool:
    """Whether ranks that are not in view may be what it lacks."""
    if wait.missing or _is_ending(job, wait):
        return False
    return wait.call == IN_INIT or (wait.group is not None and (bool(wait.unseen) or not wait.is_complete))


def _left_behind(job: Job) -> list[Verdict]:
    """H1 on ranks that are in no wait and do nothing, while all others have come to their end."""
    gate, left = job.thresholds.hang_seconds, set(job.columns.exit_reasons)
    ranks = [rank for number, rank in job.ranks.items() if number not in left]
    if not left or len(job.ranks) < job.world_size or any(job.ranks[number].process.is_alive for number in left):
        return []
    idle = [_idle_seconds(rank) for rank in ranks if rank.setup == "initialized"]
    are_idle = len(idle) == len(ranks) and min(idle, default=0.0) >= gate
    if not are_idle or any(job.phases.get(rank.rank) or job.doing(rank) or job.is_busy(rank) for rank in ranks):
        return []
    numbers = [rank.rank for rank in ranks]
    has = words.verb(numbers, "has", "have")
    return [
        job.verdict(
            "hang", "TW-H1", None, numbers,
            f"{words.ranks(numbers)} {has} not come to the end, as all other ranks have, and {has} done nothing since",
            [job.account(number) for number in numbers[:MAX_SUSPECTS]], Basis.COMPARISON, victims=0, seconds=min(idle),
        )
    ]  # fmt: skip


def _idle_seconds(rank: Rank) -> float:
    """Since it completed anything; 0 of one that waits."""
    if is_waiting(rank) or rank.longest_open:
        return 0.0
    ages = [rank.setup_seconds, *(group.idle_seconds for group in rank.process_groups)]
    return min((age for age in ages if age is not None), default=0.0)
