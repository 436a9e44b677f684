"""What stands still: the parts of the graph that are older than the gate; and jobs that run and complete nothing, where
the operations in view do not say why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ... import words
from ...confidence import Basis
from ...model import MAX_SUSPECTS, SETUPS
from ..view import transport
from ..view.job import LONG, RUNS
from ..view.states import States
from ..view.waits import IN_INIT
from ..view.work import LEAST_SECONDS
from .part import Part, all_entered

if TYPE_CHECKING:
    from ...model import Finding
    from ..view.job import Job, Verdict
    from ..view.waits import Wait

_MAX_FINDINGS = 4
_MAX_PARTS = 32
_EXCHANGED = 4096.0  # bytes per second on an edge, from which ranks exchange data; stores and heartbeats move less
_WHOLE = 0.8  # of the window that samples go back: in less of it the analyzer may have met with a pause
_MOMENT = 1.0  # counts of ranks come in a little later than those of the kernel
_MAX_STACKS = 32
_MAX_FACTS = 6
_DESTROYED = SETUPS.index("destroyed")


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
    return bool((ages < job.recent_seconds).any())


def _moves(job: Job, wait: Wait) -> bool:
    """Whether bytes still move in this operation: it is large, and nothing hangs.

    Ranks that complete other operations meanwhile may move bytes for those, so they do not count.
    """
    if wait.group is None:
        return False
    completing = job.columns.row_numbers[job.columns.rows.idle_seconds < job.recent_seconds]
    still = set(wait.inside) - set(completing.tolist())
    return transport.progress(job, wait.group, still, job.recent_seconds) >= transport.PROGRESS


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
    are_in_none = all(rank.setup == "initialized" and not (rank.is_waiting or rank.longest_open) for rank in ranks)
    numbers = [rank.rank for rank in ranks]
    idle = _idle_seconds(job, numbers, {}) if ranks and are_in_none else 0.0
    if idle < gate or any(job.phases.get(rank.rank) or job.doing(rank) or job.is_busy(rank) for rank in ranks):
        return []
    has = words.verb(numbers, "has", "have")
    return [
        job.verdict(
            "hang", "TW-H1", None, numbers,
            f"{words.ranks(numbers)} {has} not come to the end, as all other ranks have, and {has} done nothing since",
            [job.account(number) for number in numbers[:MAX_SUSPECTS]], Basis.COMPARISON, victims=0, seconds=idle,
        )
    ]  # fmt: skip


def find_no_progress(job: Job, first_seen: dict[int, float]) -> list[Verdict]:
    """A verdict where no rank has completed anything for as long as the hang gate; none of a job that goes on.

    Unknown trouble if no rank works; a notice if one does, has of late, or has declared what it does: a rank that
    writes a checkpoint pauses at times, and one that has just got stuck is told a window of samples later. A notice,
    too, if none has a process group any more: a rank that lives on keeps none waiting.

    Args:
        first_seen: of each rank, on the clock of observations.
    """
    columns = job.columns
    alive = columns.numbers[columns.places.are_alive].tolist()
    if not alive or not job.work.covers(LEAST_SECONDS, job.time):
        return []
    seconds = _idle_seconds(job, alive, first_seen)
    if seconds < job.thresholds.hang_seconds:
        return []
    recent = max(seconds - _MOMENT, 0.5 * seconds)  # what came before was part of what they completed
    candidates = job.work.candidates(job.time - recent, job.time, columns)
    works = {number: what for number in candidates if (what := job.doing(job.ranks[number], recent))}
    if seconds < LONG * job.thresholds.hang_seconds:  # slow storage may show nothing of it
        active = (job.ranks[number] for number in columns.activities)
        works = {rank.rank: f"is in {rank.activity}" for rank in active if job.is_busy(rank)} | works
    # Messages that are not counted, or a transfer that takes long.
    moving = transport.moving(job, recent, _EXCHANGED)
    for number in moving.keys() & set(alive):
        exchanges = f"exchanges {words.nbytes(moving[number])}/s with other ranks"
        works[number] = ", ".join(filter(None, (works.get(number), exchanges)))
    works = works or dict.fromkeys(sorted(job.runnable), RUNS)
    if works:
        return [_working(job, works, seconds)]
    window = min(job.thresholds.hang_seconds, job.thresholds.slow_seconds)
    is_known = job.work.covers(_WHOLE * window, job.time) and job.work.tells(job.time - recent, job.time)
    return [_still(job, alive, seconds)] if is_known else []


def _idle_seconds(job: Job, alive: list[int], first_seen: dict[int, float]) -> float:
    """Since the last rank completed or entered anything, or came to where it is: what was entered later than the hang
    gate is judged when it is as old."""
    columns = job.columns
    least = np.fmin(columns.least(columns.rows.idle_seconds), columns.least(columns.rows.open_seconds))
    ages = dict(zip(columns.numbers.tolist(), np.fmin(least, columns.setups[1]).tolist(), strict=True))
    known = (age if (age := ages[n]) < np.inf else job.time - first_seen.get(n, job.time) for n in alive)
    return min(known)


def _working(job: Job, works: dict[int, str], seconds: float) -> Verdict:
    numbers = sorted(works, key=lambda number: (number not in job.phases, number))
    what = works[numbers[0]] if len(numbers) == 1 else f"work (rank {numbers[0]} {works[numbers[0]]})"
    return job.verdict(
        "no progress", "TW-UNKNOWN", None, numbers,
        f"{words.ranks(numbers)} {what}; no rank has completed an operation for {words.seconds(seconds)}",
        [job.account(number, works=works[number]) for number in numbers[:_MAX_FACTS]], Basis.REMAINDER,
        victims=len(job.ranks) - len(numbers), seconds=seconds, level="notice",
    )  # fmt: skip


def _still(job: Job, alive: list[int], seconds: float) -> Verdict:
    phases = sorted({job.phases[number] for number in alive if number in job.phases})
    declared = f" (in declared phase: {', '.join(phases)})" if phases else ""
    are_at_end = bool((job.columns.setups[0][job.columns.places.are_alive] == _DESTROYED).all())
    declared += " (after destroy_process_group)" if are_at_end else ""
    facts = [job.account(number) for number in alive[:_MAX_FACTS]]
    if len(alive) > _MAX_FACTS:
        facts.append(f"stacks of {min(len(alive), _MAX_STACKS)} of {len(alive)} ranks are asked for")
    if job.out_of_view:
        facts.append(f"{words.does(job.out_of_view, 'is', 'are')} not in view")
    return job.verdict(
        "no progress", "TW-UNKNOWN", None, [],
        f"no rank has completed an operation for {words.seconds(seconds)}, and none of the "
        f"{words.count(len(alive), 'rank')} in view uses a CPU or moves bytes{declared}",
        facts, Basis.REMAINDER, victims=len(alive), seconds=seconds, witnesses=alive[:_MAX_STACKS],
        level="notice" if phases or are_at_end else "finding",
    )  # fmt: skip
