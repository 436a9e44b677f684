"""Lost processes: the first to die is named, not the peers that fail because of it, nor those that somebody ended."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from .. import words
from ..model import REPLACED
from .confidence import Basis
from .exit_reasons import (
    LEFT,
    alike,
    gone,
    has_spoken,
    interruption,
    is_secondary,
    ran_out_of_time,
    reacted_at_once,
    said,
)
from .hangs import find_hangs
from .post_mortem import post_mortem
from .rewind import rewound
from .signatures import mismatch
from .verdict import MAX_SUSPECTS

if TYPE_CHECKING:
    from ..model import Rank
    from .exit_reasons import Interruption
    from .job import Job
    from .transport import Transport
    from .verdict import Verdict

# Last signs of life are known to a heartbeat of the probe, and a peer fails within a moment.
_MOMENT = 0.1
_AFTERMATH = 2.0
_LIVES_ON = 2.5  # who fails ends within a moment, and agents poll about once a second


def find_lost(job: Job, dead: dict[int, Rank], hangs: list[Verdict], named: Set[int] = frozenset()) -> Verdict | None:
    """The verdict on the ranks that are gone; None while no rank is, all left well, or the time to tell has not come.

    A rank that exits with code 0, or runs another program, while others wait for it in an operation is lost as well:
    what the others lack is a process, and whoever looks for its stack would look in vain.

    Args:
        hangs: verdicts on hangs that stood when the first of them gave up.
        named: who was found to be lost before.
    """
    failed = {number: rank for number, rank in dead.items() if rank.process.exit_reason not in LEFT}
    left = {number: rank for number, rank in dead.items() if number not in failed}
    are_open = job.columns.rows.open_seconds >= job.thresholds.lost_seconds
    waiting = set(job.columns.row_numbers[are_open].tolist()) - dead.keys()
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
    same = alike(failed)
    same = [] if set(first).isdisjoint(same) else same  # they failed because another had
    if same:
        first, certain = same, True
    if max(gone(dead[number]) for number in first) < _patience(job, dead, first, named):
        return None
    verdict = mismatch(job)
    if verdict is not None:
        verdict.finding.evidence += _evidence(dead, first)
        return verdict
    verdict = post_mortem(job, _witnesses(failed), _MOMENT, hangs)
    if verdict is not None:
        return verdict
    others = [number for number in dead if number not in first]
    what = _together(job, dead, same) if same else "; ".join(f"rank {n} {_end(dead[n])}" for n in first)
    if others:
        what += f"; {words.ranks(others)} followed"
    if waiting:
        what += f"; {words.count(len(waiting), 'rank')} {words.verb(waiting, 'waits', 'wait')}"
    evidence = _evidence(dead, [*first[:MAX_SUSPECTS], *sorted(others, key=lambda number: -gone(dead[number]))[:4]])
    aborted = [number for number in first if dead[number].process.exit_reason.endswith("SIGABRT")]
    if aborted:
        certain = False
        evidence.append(
            f"{words.ranks(aborted)} aborted: gloo aborts a rank that receives more than it expects, so that a rank "
            "which called something else may be to blame, though what is known of the calls agrees"
        )
    return job.verdict(
        "lost",
        "TW-LOST",
        None,
        first,
        what,
        evidence,
        Basis.STATE if certain else Basis.COMPARISON,
        victims=len(others) + len(waiting),
        seconds=max(gone(dead[number]) for number in first),
    )


def find_interrupted(job: Job, transport: Transport, hangs: list[Verdict]) -> list[Verdict] | None:
    """The verdicts on a job that somebody ended; none where it was well. None where nobody did, or a rank failed first.

    Args:
        hangs: verdicts on hangs that stood when the first of its ranks ended.
    """
    telling = _telling(job)
    stop = interruption(telling, are_all=len(telling) == len(job.ranks))
    if stop is None or _left_early(job, telling, stop):
        return None
    stood = [verdict for verdict in hangs if verdict.finding.level == "finding"]
    found = stood or [_of_then(verdict, stop) for verdict in find_hangs(rewound(job, stop.seconds), transport)]
    prompt = [
        each for each in found if any(reacted_at_once(job.ranks[n]) for n in each.finding.suspects if n in job.ranks)
    ]
    found = prompt or found
    if not found and _some_hang_on(job):
        return None  # it ended some ranks, and others wait for them
    return found


def _patience(job: Job, dead: dict[int, Rank], first: list[int], named: Set[int]) -> float:
    """A rank that has failed and does not end is known at once: nothing is about to take its place."""
    if not named.isdisjoint(first):
        return 0.0
    live_on = all(dead[number].process.is_alive for number in first)
    return min(job.thresholds.lost_seconds, _LIVES_ON) if live_on else job.thresholds.lost_seconds


def _telling(job: Job) -> list[Rank]:
    """Ranks that are gone, have said something, or got a signal: in a job that runs on these are few."""
    columns = job.columns
    gone_ones = columns.numbers[~columns.places.are_alive].tolist()
    return [job.ranks[number] for number in sorted({*gone_ones, *columns.exit_reasons, *columns.signals})]


def _left_early(job: Job, telling: list[Rank], stop: Interruption) -> bool:
    """Whether a rank had left well before, and the others went on without it."""
    return any(
        rank.process.exit_reason in LEFT and gone(rank) > stop.seconds and not _is_done(job, rank) for rank in telling
    )


def _of_then(verdict: Verdict, stop: Interruption) -> Verdict:
    finding = verdict.finding
    summary = f"when the job was ended ({stop.how}): {finding.summary}"
    since = (finding.time if finding.since is None else finding.since) - stop.seconds  # it was told as of then
    return replace(verdict, kind="lost", finding=replace(finding, summary=summary, since=since))


def _together(job: Job, dead: dict[int, Rank], same: list[int]) -> str:
    """What ranks that failed of the same have said."""
    who = f"all {job.world_size} ranks" if len(same) == job.world_size else words.ranks(same)
    process = dead[same[0]].process
    return f"{who} failed with {process.exit_reason}"


def _first(failed: dict[int, Rank]) -> tuple[list[int], bool]:
    """Who may have died first, of these who did as far as it can be told, and whether that is certain."""
    earliest = max(said(rank) for rank in failed.values())
    near = [number for number, rank in failed.items() if said(rank) >= earliest - _AFTERMATH]
    own = [number for number in near if not is_secondary(failed[number])] or near
    start = max(said(failed[number]) for number in own)
    tied = [number for number in own if said(failed[number]) >= start - _MOMENT]
    # What cannot be told apart by time: the one that got less far had no part in the others' last operations.
    progress = {number: sum(group.enqueued for group in failed[number].process_groups) for number in tied}
    tied.sort(key=lambda number: (progress[number], -said(failed[number]), number))
    least = [number for number in tied if progress[number] == progress[tied[0]]]
    return least[:MAX_SUSPECTS], len(least) == 1 and (len(tied) == 1 or len(near) > len(own))


def _witnesses(failed: dict[int, Rank]) -> list[int]:
    """Who tells of a wait: those that ran out of time, or, if nobody said anything, that were ended together.

    Who lost a connection tells of a death.
    """
    timed_out = [number for number, rank in failed.items() if ran_out_of_time(rank)]
    if timed_out or any(has_spoken(rank) for rank in failed.values()):
        return timed_out
    times = sorted((gone(rank), number) for number, rank in failed.items())
    together = [pair for pair in pairwise(times) if pair[1][0] - pair[0][0] <= _MOMENT]
    return sorted({number for pair in together for _, number in pair})


def _some_hang_on(job: Job) -> bool:
    """Whether a rank that lives waits for longer than the hang gate."""
    places, rows = job.columns.places, job.columns.rows
    return bool((places.are_alive[rows.places] & (rows.open_seconds >= job.thresholds.hang_seconds)).any())


def _is_done(job: Job, rank: Rank) -> bool:
    """Whether the rank had entered all that the others have."""
    return all(group.has_entered(int(job.groups[group.id].enqueued.max())) for group in rank.process_groups)


def _end(rank: Rank, ago: str = "") -> str:
    """How it ended; when, only where that is asked for: whoever shows a finding shows its age."""
    process = rank.process
    if process.is_alive:
        return f"failed with {process.exit_reason}{ago}, and its process lives on"
    if process.exit_reason == REPLACED:
        return REPLACED + (f", last heard of{ago}" if ago else "")
    how = f"ended ({process.exit_reason})" if process.exit_reason else "ended without an exit reason"
    if process.exit_kind == "crash":
        how = f"was {process.exit_reason}"
    return how + ago


def _evidence(dead: dict[int, Rank], numbers: list[int]) -> list[str]:
    facts = []
    for rank in (dead[number] for number in numbers):
        ago = f" {words.seconds(gone(rank))} ago"
        facts.append(f"rank {rank.rank} (pid {rank.pid} on {rank.node}) {_end(rank, ago)}{_last(rank)}")
    return facts


def _last(rank: Rank) -> str:
    """The operation that it was in when it was last heard of, or had been in."""
    opened = [group for group in rank.process_groups if group.open_seconds is not None]
    if opened:
        group = max(opened, key=lambda group: (group.open_seconds or 0.0, group.id))
        return f", in {words.numbered(group.operation, group.open_sequence, group.title)}"
    done = [group for group in rank.process_groups if group.idle_seconds is not None and group.completed]
    if not done:
        return ", before its first operation" if rank.process_groups else ""
    group = min(done, key=lambda group: (group.idle_seconds or 0.0, group.id))
    return f", after {words.numbered(group.operation, group.completed, group.title)}"
