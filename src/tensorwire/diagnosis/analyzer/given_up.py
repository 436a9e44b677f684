"""Hangs that ended before anyone looked: ranks that waited gave up, by a time-out or because the job was ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import Finding
from . import words
from .job import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..model import Communicator
    from .job import Group, Job

_PATIENCE = 2.0  # ranks of a healthy job enter an operation closer together


def given_up(job: Job, witnesses: Iterable[int], moment: float) -> Verdict | None:
    """H1 on the ranks that had not entered what these dead ranks had long waited in, and that did not die before them.

    None where they all had, or nobody had waited long. `moment`: how well the times of deaths are known.
    """
    longest: tuple[float, int, Group, Communicator, list[int]] | None = None
    for number in witnesses:
        gone = job.ranks[number].process.gone_seconds or 0.0
        for own in job.ranks[number].communicators:
            group = job.groups[own.id]
            waited = (own.open_seconds or 0.0) - gone
            missing = [
                other
                for other, member in group.members.items()
                if member.enqueued < own.enqueued and (job.ranks[other].process.gone_seconds or 0.0) <= gone + moment
            ]
            if missing and waited >= _PATIENCE and (longest is None or waited > longest[0]):
                longest = waited, number, group, own, missing
    if longest is None:
        return None
    waited, witness, group, own, missing = longest
    missing.sort(key=lambda number: (group.members[number].enqueued, number))
    what = f"{words.numbered(own.operation, own.enqueued)} of {group.title}"
    inside = [number for number, member in group.members.items() if member.enqueued >= own.enqueued]
    summary = f"{words.ranks(missing)} had not entered {what} when the job ended; {words.count(len(inside), 'rank')} "
    summary += f"had waited for {words.verb(missing, 'it', 'them')}"
    evidence = [f"rank {witness} ended after {words.seconds(waited)} in {what}"]
    farewell = job.ranks[witness].process.farewell
    if farewell:
        evidence[0] += f", with {farewell}"
    evidence += [
        f"rank {number} had entered #{group.members[number].enqueued} and nothing since" for number in missing[:5]
    ]
    return Verdict(
        "lost",
        Finding(
            "TW-H1",
            "finding",
            job.time,
            missing[:5],
            [],
            group.title,
            summary,
            evidence,
            0.85 if 2 * len(missing) <= group.size else 0.5,
            victims=len(inside),
        ),
    )
