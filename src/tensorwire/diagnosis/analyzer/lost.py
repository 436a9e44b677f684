"""Lost processes: the first to die is named, not the peers that fail because of it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from .. import words
from .confidence import Basis
from .exit_reasons import CLEAN, gone, is_secondary, ran_out_of_time
from .post_mortem import post_mortem
from .signatures import mismatch
from .verdict import MAX_SUSPECTS

if TYPE_CHECKING:
    from ..model import Rank
    from .job import Job
    from .verdict import Verdict

# Last signs of life are known to a heartbeat of the probe, and a peer fails within a moment.
_MOMENT = 0.1
_AFTERMATH = 2.0


def find_lost(job: Job, dead: dict[int, Rank], hangs: list[Verdict]) -> Verdict | None:
    """The verdict on the ranks that are gone; None while no rank is, all left well, or the time to tell has not come.

    A rank that exits with code 0 while others wait for it in an operation is lost as well: what the others lack is a
    process, and whoever looks for its stack would look in vain.

    Args:
        hangs: verdicts on hangs that stood when the first of them gave up.
    """
    failed = {number: rank for number, rank in dead.items() if rank.process.exit_reason != CLEAN}
    left = {number: rank for number, rank in dead.items() if number not in failed}
    waiting = [number for number, rank in job.ranks.items() if number not in dead and _waits(rank, job)]
    if failed:
        earliest = max(gone(rank) for rank in failed.values())
        if all(is_secondary(rank) for rank in failed.values()):
            # They died of a connection that someone closed: of one who left early, if there is one.
            early = {number: rank for number, rank in left.items() if gone(rank) > earliest and not _is_done(job, rank)}
            failed = early or failed
    elif waiting:
        failed = {number: rank for number, rank in left.items() if not _is_done(job, rank)}
    if not failed:
        return None
    first, certain = _first(failed)
    if max(gone(dead[number]) for number in first) < job.thresholds.lost_seconds:
        return None
    verdict = mismatch(job)
    if verdict is not None:
        verdict.finding.evidence += _evidence(dead, first)
        return verdict
    verdict = post_mortem(job, _witnesses(failed), _MOMENT, hangs)
    if verdict is not None:
        return verdict
    others = [number for number in dead if number not in first]
    what = "; ".join(f"rank {number} {_end(dead[number])}" for number in first)
    if others:
        what += f"; {words.ranks(others)} followed"
    if waiting:
        what += f"; {words.count(len(waiting), 'rank')} {words.verb(waiting, 'waits', 'wait')}"
    return job.verdict(
        "lost",
        "TW-LOST",
        None,
        first,
        what,
        _evidence(dead, [*first, *sorted(others, key=lambda number: -gone(dead[number]))[:4]]),
        Basis.STATE if certain else Basis.COMPARISON,
        victims=len(others) + len(waiting),
    )


def _first(failed: dict[int, Rank]) -> tuple[list[int], bool]:
    """Who may have died first, of these who did as far as it can be told, and whether that is certain."""
    earliest = max(gone(rank) for rank in failed.values())
    near = [number for number, rank in failed.items() if gone(rank) >= earliest - _AFTERMATH]
    own = [number for number in near if not is_secondary(failed[number])] or near
    start = max(gone(failed[number]) for number in own)
    tied = [number for number in own if gone(failed[number]) >= start - _MOMENT]
    # What cannot be told apart by time: the one that got less far had no part in the others' last operations.
    progress = {number: sum(group.enqueued for group in failed[number].process_groups) for number in tied}
    tied.sort(key=lambda number: (progress[number], -gone(failed[number]), number))
    least = [number for number in tied if progress[number] == progress[tied[0]]]
    return least[:MAX_SUSPECTS], len(least) == 1 and (len(tied) == 1 or len(near) > len(own))


def _witnesses(failed: dict[int, Rank]) -> list[int]:
    """Who tells of a wait: those that ran out of time, or, if nobody said anything, that were ended together.

    Who lost a connection tells of a death.
    """
    timed_out = [number for number, rank in failed.items() if ran_out_of_time(rank)]
    if timed_out or any(rank.process.exit_reason for rank in failed.values()):
        return timed_out
    times = sorted((gone(rank), number) for number, rank in failed.items())
    together = [pair for pair in pairwise(times) if pair[1][0] - pair[0][0] <= _MOMENT]
    return sorted({number for pair in together for _, number in pair})


def _waits(rank: Rank, job: Job) -> bool:
    return any(group.is_open_for(job.thresholds.lost_seconds) for group in rank.process_groups)


def _is_done(job: Job, rank: Rank) -> bool:
    """Whether the rank had entered all that the others have."""
    return all(
        group.has_entered(max(member.enqueued for member in job.groups[group.id].members.values()))
        for group in rank.process_groups
    )


def _end(rank: Rank) -> str:
    process = rank.process
    how = f"ended ({process.exit_reason})" if process.exit_reason else "ended without an exit reason"
    return f"{how} {words.seconds(gone(rank))} ago"


def _evidence(dead: dict[int, Rank], numbers: list[int]) -> list[str]:
    return [f"rank {number} (pid {dead[number].pid} on {dead[number].node}) {_end(dead[number])}" for number in numbers]
