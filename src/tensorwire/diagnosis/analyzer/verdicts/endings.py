"""Jobs of which processes have ended: what stood still before, or else the process that ended first.

A rank that ends because another has, or because somebody ended the job, says nothing of the cause. It keeps the wait
that it ended in: what the job was in at the first end is judged as that of a job that lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ... import words
from ...model import REPLACED
from ..view.confidence import Basis
from ..view.exit_reasons import (
    LEFT,
    alike,
    gone,
    has_own_words,
    has_spoken,
    is_secondary,
    is_silent,
    ran_out_of_time,
    reacted_at_once,
    said,
    was_interrupted,
)
from ..view.job import is_waiting
from ..view.past import rewound
from ..view.verdict import MAX_SUSPECTS
from .hangs import find_hangs
from .unlike_calls import parted, unlike_calls

if TYPE_CHECKING:
    from ...model import Rank
    from ..view.job import Job
    from ..view.transport import Transport
    from ..view.verdict import Verdict

# Last signs of life are known to a heartbeat of the probe, and a peer fails within a moment.
_MOMENT = 0.1
_AFTERMATH = 2.0
_TOGETHER = 10.0  # in which a signal reaches all ranks, if one after the other; what comes later is another one
_AT_ONCE = 0.05  # in which a signal reaches all ranks that it is sent to; a launcher takes longer once one has gone
_LAUNCHER_SECONDS = 1.2  # in which it has seen that one has gone, and ends the others
# Ranks of a job that trains wait for one another for milliseconds, but also for a checkpoint, an evaluation or a first
# batch. Somebody who ends a job that hangs has watched it for longer than that.
_WATCHED = 10.0
_PATIENCE = 2.0  # ranks of a healthy job enter an operation closer together
_LIVES_ON = 2.5  # who fails ends within a moment, and agents poll about once a second


@dataclass(frozen=True, slots=True)
class _Ends:
    """How ranks have ended, or were asked to."""

    failed: dict[int, Rank]  # did not leave well
    left: dict[int, Rank]  # left well, whether the others were done or not
    asked: dict[int, float]  # by a signal, and how long ago
    ways: dict[int, str]  # of asking
    are_noted: bool  # the probes of these ranks note signals
    first: float  # how long ago the first of the failed ended, or the first was asked to

    @property
    def is_asked_first(self) -> bool:
        """Whether somebody asked a rank to end before any failed."""
        return bool(self.asked) and max(self.asked.values()) >= self.first


def find_ended(
    job: Job, dead: dict[int, Rank], transport: Transport, hangs: list[Verdict], named: Set[int] = frozenset()
) -> list[Verdict] | None:
    """The verdicts on a job that has lost processes or was asked to end; [] where it was well, and None where no rank
    has ended that others need, or the time to tell has not come.

    Args:
        dead: ranks that are gone, or have failed and live on.
        hangs: verdicts on hangs that stood when the first of them ended.
        named: ranks that were found to be lost before.
    """
    ends = _ends(job, dead)
    early = {n: rank for n, rank in ends.left.items() if gone(rank) > ends.first and not _is_done(job, rank)}
    if 2 * len(early) > len(job.ranks):  # whoever waits for so many that have ended well calls once too often
        early = {}
    if early and (ends.failed or ends.asked or _waiting(job, dead)):
        others = [number for number in job.ranks if number not in early]
        if len(others) <= len(early) and max(map(gone, early.values())) >= job.thresholds.lost_seconds:
            return _two_sides(job, list(early), others, f"{words.ranks(early)} ended well while others had more to do")
        return _lost(job, dead, early, named, certain=True)
    if not ends.failed and not ends.asked:
        return None
    patience = _tell_of_a_wait(job, ends)
    if ends.is_asked_first or patience is not None:
        before = _before(job, transport, ends, hangs, None if ends.is_asked_first else patience)
        if before:
            return before
    if ends.is_asked_first:
        asked = _asked_alone(job, ends)
        if not asked:  # the job was well
            return []
        by_it = {number: job.ranks[number] for number in asked if number in dead}
        # A rank that has died of a lost connection by now may have been about to get it too.
        is_certain = any(rank.process.is_alive for n, rank in job.ranks.items() if n not in ends.asked)
        return _lost(job, dead, by_it, named, certain=is_certain, all_of=True) if by_it else None
    first, _ = _first(ends.failed)
    if max(gone(dead[number]) for number in first) < _patience(job, dead, first, named):
        return None
    if not any(map(has_own_words, ends.failed.values())):
        unlike = unlike_calls(job)
        if unlike is not None:
            unlike.finding.evidence += _evidence(dead, list(ends.failed)[:MAX_SUSPECTS])
            return [unlike]
        aborted = [number for number in first if _aborted(job.ranks[number]) and _is_in_message(job.ranks[number])]
        if aborted:
            others = [number for number in job.ranks if number not in aborted]
            what = f"{words.ranks(aborted)} aborted in a message, as gloo does on more data than it expects"
            return _two_sides(job, aborted, others, what)
        # They died of a connection that someone closed: of one who left just before, if there is one.
        left = {n: rank for n, rank in ends.left.items() if 0.0 < gone(rank) - ends.first <= _AFTERMATH}
        if left and all(map(is_secondary, ends.failed.values())):
            return _lost(job, dead, left if len(left) <= len(ends.failed) else ends.failed, named)
    return _lost(job, dead, ends.failed, named)


def _two_sides(job: Job, ranks: list[int], others: list[int], summary: str) -> list[Verdict]:
    """H2: these ended, or died, of calls that do not fit those of the others, and either may be wrong."""
    return [
        job.verdict(
            "lost", "TW-H2", None, [], f"{summary}; it is unknown which are wrong: {words.ranks(ranks)} or "
            f"{words.ranks(others)}", [*_evidence(job.ranks, ranks[:MAX_SUSPECTS]), *parted(job)], Basis.COMPARISON,
            victims=len(others), sides=[ranks, others], seconds=max(gone(job.ranks[number]) for number in ranks),
        )
    ]  # fmt: skip


def _ends(job: Job, dead: dict[int, Rank]) -> _Ends:
    failed = {n: rank for n, rank in dead.items() if rank.process.exit_reason not in LEFT}
    left = {number: rank for number, rank in dead.items() if number not in failed}
    asked = {n: job.ranks[n].process.signal_seconds or said(job.ranks[n]) for n in job.columns.signals}
    are_noted = bool(asked)
    asked |= {n: said(rank) for n, rank in failed.items() if n not in asked and was_interrupted(rank)}
    asked = {n: age for n, age in asked.items() if max(asked.values()) - age <= _TOGETHER}
    ages = list(asked.values())
    for number, rank in failed.items():
        # Where signals are not noted, whoever is killed with one that speaks of it may have been heard of before.
        is_of_it = not are_noted and asked and is_silent(rank) and gone(rank) <= max(asked.values()) + _AFTERMATH
        if number not in asked and not is_of_it:
            ages.append(said(rank))
    ways = {n: job.ranks[n].process.signal or job.ranks[n].process.exit_reason for n in asked}
    first = max(ages, default=0.0)
    # Peers of a process that has gone lose a connection. Where they ran out of time, it was silent and still there.
    timed_out = max((said(rank) for rank in failed.values() if ran_out_of_time(rank)), default=first)
    if not asked and not any(rank.process.exit_reason for rank in failed.values() if said(rank) > timed_out):
        first = timed_out
    return _Ends(failed, left, asked, ways, are_noted, first)


def _witness(ends: _Ends) -> list[int]:
    """A rank that tells how they ended: one that ran out of time, or else the first."""
    timed_out = {number: rank for number, rank in ends.failed.items() if ran_out_of_time(rank)}
    return _first(timed_out or ends.failed)[0][:1]


def _how(ends: _Ends) -> str:
    start = max(ends.asked.values())
    return min(way for number, way in ends.ways.items() if ends.asked[number] == start)


def _asked_alone(job: Job, ends: _Ends) -> list[int]:
    """The ranks that somebody ended alone; none where most got the signal: it was sent to all, though perhaps to one
    after the other.

    A launcher ends all others at once by SIGTERM, a while after one has gone. Clocks of two nodes are not compared.
    """
    if not ends.are_noted:  # one that speaks of it stands for all, unless others wait on
        return list(ends.asked) if _some_hang_on(job) else []
    start, way = max(ends.asked.values()), _how(ends)
    first = next(number for number, age in ends.asked.items() if age == start and ends.ways[number] == way)
    asked = [number for number in ends.asked if ends.ways[number] == way]
    if way == "SIGTERM":
        here = [number for number in asked if job.ranks[number].node == job.ranks[first].node]
        later = [ends.asked[number] for number in here if start - ends.asked[number] > _AT_ONCE]
        if later and max(later) - min(later) <= _AT_ONCE and start - max(later) <= _LAUNCHER_SECONDS:
            asked = [number for number in here if start - ends.asked[number] <= _AT_ONCE]
    rest = [rank for number, rank in job.ranks.items() if number not in asked]
    if any(rank.process.is_alive for rank in rest):
        return asked  # nobody has sent the others any
    return [] if 2 * len(asked) > len(job.ranks) else asked


def _tell_of_a_wait(job: Job, ends: _Ends) -> float | None:
    """How long a wait has to be that ranks ended in; None where how they ended tells of no wait.

    Ranks that ran out of time had waited. Ranks that somebody killed, within seconds, may have.
    """
    if not ends.failed:
        return None
    first = [rank for rank in ends.failed.values() if said(rank) >= ends.first - _MOMENT]
    if any(map(has_own_words, first)):
        return None
    return _PATIENCE if any(map(ran_out_of_time, ends.failed.values())) else job.thresholds.hang_seconds


def _before(job: Job, transport: Transport, ends: _Ends, hangs: list[Verdict], patience: float | None) -> list[Verdict]:
    """What stood still when the first rank ended: as it was found then, or as it is found of that moment now."""
    gate = min(job.thresholds.hang_seconds, _WATCHED if patience is None else patience)
    then = rewound(job, ends.first, gate)
    found = [verdict for verdict in hangs if verdict.finding.level == "finding"]
    if not any(verdict.finding.suspects or verdict.finding.sides for verdict in found):
        found = [_of_then(job, verdict, ends) for verdict in find_hangs(then, transport)] or found
    named = [verdict for verdict in found if verdict.finding.suspects or verdict.finding.sides]
    if found and not named and not ends.is_asked_first:
        return [_stayed(job, found[0], ends) or found[0]]
    prompt = [
        each for each in named if any(reacted_at_once(job.ranks[n]) for n in each.finding.suspects if n in job.ranks)
    ]
    return prompt or found


def _stayed(job: Job, verdict: Verdict, ends: _Ends) -> Verdict | None:
    """H3 on the few that did not give up as the others did: were silent from earlier on, or stayed until killed."""
    group = next((group for group in job.groups.values() if group.title == verdict.finding.process_group), None)
    ranks = [job.ranks[number] for number in group.members] if group else []
    quiet = [rank for rank in ranks if not has_spoken(rank)]
    if group is None or not any(has_spoken(rank) for rank in ranks):
        return None
    silent = [rank for rank in quiet if gone(rank) > ends.first + _PATIENCE]
    stayed = [rank for rank in quiet if gone(rank) < ends.first - _PATIENCE]
    found = silent or stayed or quiet
    if not found or (not silent and 2 * len(found) >= len(ranks)):
        return None
    how = "was last heard of before the others gave up" if silent else "ended without an exit reason, as no other did"
    how = "outlived ranks that gave up" if stayed and not silent else how
    numbers = [rank.rank for rank in found]
    stopped = verdict.finding.summary.partition(";")[0].partition(", and")[0].removesuffix(" stopped inside")
    return job.verdict(
        "lost",
        "TW-H3",
        group,
        numbers,
        f"{stopped} stopped inside at {words.ranks(numbers)}; {group.all_members} had entered it",
        [*verdict.finding.evidence, *(f"rank {number} {how}" for number in numbers[:MAX_SUSPECTS])],
        Basis.COMPARISON if silent else Basis.REMAINDER,
        victims=len(ranks) - len(found),
        seconds=verdict.finding.since and job.time - verdict.finding.since,
    )


def _of_then(job: Job, verdict: Verdict, ends: _Ends) -> Verdict:
    finding = verdict.finding
    told = [] if ends.is_asked_first else _evidence(job.ranks, _witness(ends))
    how = "when the first rank ended"
    if ends.is_asked_first:
        how = f"when the job was ended ({_how(ends)})"
    since = (finding.time if finding.since is None else finding.since) - ends.first  # it was told as of then
    return replace(
        verdict,
        kind="lost",
        finding=replace(finding, summary=f"{how}: {finding.summary}", since=since, evidence=[*finding.evidence, *told]),
    )


def _lost(
    job: Job,
    dead: dict[int, Rank],
    candidates: dict[int, Rank],
    named: Set[int],
    *,
    certain: bool = False,
    all_of: bool = False,
) -> list[Verdict] | None:
    """The first of these to end, or all. What others lack is a process: nobody would find a stack of it."""
    first, is_first = (sorted(candidates), True) if all_of else _first(candidates)
    same = alike(candidates)
    if not set(first).isdisjoint(same):  # they failed because another had
        first, is_first = same, True
    else:
        same = []
    if max(gone(dead[number]) for number in first) < _patience(job, dead, first, named):
        return None
    waiting = _waiting(job, dead)
    others = [number for number in dead if number not in first]
    what = _together(job, dead, same) if same else "; ".join(f"rank {n} {_end(dead[n])}" for n in first)
    if others:
        what += f"; {words.ranks(others)} followed"
    if waiting:
        what += f"; {words.count(len(waiting), 'rank')} {words.verb(waiting, 'waits', 'wait')}"
    evidence = _evidence(dead, [*first[:MAX_SUSPECTS], *sorted(others, key=lambda number: -gone(dead[number]))[:4]])
    aborted = [number for number in first if _aborted(dead[number])]
    if aborted:
        evidence.append(
            f"{words.ranks(aborted)} aborted, as gloo does on more data than it expects, though what is known of the "
            "calls agrees"
        )
    doubtful = aborted or (not certain and all(is_secondary(dead[number]) for number in first))
    verdict = job.verdict(
        "lost",
        "TW-LOST",
        None,
        first,
        what,
        evidence + (parted(job) if doubtful else []),
        Basis.STATE if is_first and not doubtful else Basis.COMPARISON,
        victims=len(others) + len(waiting),
        seconds=max(gone(dead[number]) for number in first),
    )
    return [verdict]


def _waiting(job: Job, dead: dict[int, Rank]) -> set[int]:
    are_open = job.columns.rows.open_seconds >= job.thresholds.lost_seconds
    return set(job.columns.row_numbers[are_open].tolist()) - dead.keys()


def _patience(job: Job, dead: dict[int, Rank], first: list[int], named: Set[int]) -> float:
    """A rank that has failed and does not end is known at once: nothing is about to take its place."""
    if not named.isdisjoint(first):
        return 0.0
    live_on = all(dead[number].process.is_alive for number in first)
    return min(job.thresholds.lost_seconds, _LIVES_ON) if live_on else job.thresholds.lost_seconds


def _together(job: Job, dead: dict[int, Rank], same: list[int]) -> str:
    """What ranks that failed of the same have said."""
    who = f"all {job.world_size} ranks" if len(same) == job.world_size else words.ranks(same)
    return f"{who} failed with {dead[same[0]].process.exit_reason}"


def _first(failed: dict[int, Rank]) -> tuple[list[int], bool]:
    """The ranks of these that may have ended first, as far as it can be told, and whether that is certain."""
    earliest = max(said(rank) for rank in failed.values())
    near = [number for number, rank in failed.items() if said(rank) >= earliest - _AFTERMATH]
    own = [number for number in near if not is_secondary(failed[number])] or near
    start = max(said(failed[number]) for number in own)
    tied = [number for number in own if said(failed[number]) >= start - _MOMENT]
    # Time does not tell these apart: the one that got less far had no part in the others' last operations.
    progress = {number: sum(group.enqueued for group in failed[number].process_groups) for number in tied}
    tied.sort(key=lambda number: (progress[number], -said(failed[number]), number))
    least = [number for number in tied if progress[number] == progress[tied[0]]]
    return least[:MAX_SUSPECTS], len(least) == 1 and (len(tied) == 1 or len(near) > len(own))


def _aborted(rank: Rank) -> bool:
    return rank.process.exit_reason.endswith("SIGABRT")


def _is_in_message(rank: Rank) -> bool:
    """Messages from any source, and those that nobody numbers alike, are in no comparison of calls."""
    last = rank.calls[-1].operation.is_pairwise if rank.calls else False
    is_open = any(group.is_pairwise and group.open_seconds is not None for group in rank.process_groups)
    return last or is_open or is_waiting(rank)


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


def _evidence(dead: Mapping[int, Rank], numbers: list[int]) -> list[str]:
    facts = []
    for rank in (dead[number] for number in numbers if number in dead):
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
