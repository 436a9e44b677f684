"""Jobs that run and complete nothing, where the operations in view do not say why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ... import words
from ...model import SETUPS
from ..view import transport
from ..view.confidence import Basis
from ..view.job import RUNS
from ..view.patience import LONG
from ..view.work import LEAST_SECONDS

if TYPE_CHECKING:
    from ..view.job import Job
    from ..view.verdict import Verdict

_EXCHANGED = 4096.0  # bytes per second on an edge, from which ranks exchange data; stores and heartbeats move less
_WHOLE = 0.8  # of the window that samples go back: in less of it the analyzer may have met with a pause
_MOMENT = 1.0  # counts of ranks come in a little later than those of the kernel
_MAX_STACKS = 32
_MAX_FACTS = 6
_DESTROYED = SETUPS.index("destroyed")


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
    return [_still(job, alive, seconds)] if job.work.covers(_WHOLE * window, job.time) else []


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
