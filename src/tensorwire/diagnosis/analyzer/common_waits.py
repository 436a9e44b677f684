"""Waits that no process group counts: making a group, and monitored barriers. Only a rank's stack tells of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import words
from .confidence import Basis

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..model import Rank
    from .job import Job
    from .verdict import Verdict
    from .waits import Wait

_NAMES = ("new_group", "monitored_barrier")  # activities of the probe
_MAX_FACTS = 4


def waits_in_common(rank: Rank) -> bool:
    """Whether it is in something that other ranks have to come to as well."""
    return rank.activity in _NAMES


def not_come(job: Job, alive: list[int]) -> Verdict | None:
    """H1 on ranks that have not come to what others wait in, in a job where nobody completes anything."""
    gate = job.thresholds.hang_seconds
    active = (job.ranks[number] for number in job.columns.active)
    inside = {
        rank.rank: rank.activity_seconds or 0.0 for rank in active if rank.process.is_alive and waits_in_common(rank)
    }
    if not inside or max(inside.values()) < gate:
        return None
    missing = [
        number
        for number in alive
        if number not in inside and not any(group.is_open_for(0.0) for group in job.ranks[number].process_groups)
    ]
    if not missing:
        return None
    where = " or ".join(sorted({job.ranks[number].activity for number in inside}))
    works = [number for number in missing if job.doing(job.ranks[number]) or job.is_busy(job.ranks[number])]
    evidence = [
        f"by {words.verb(inside, 'its stack', 'their stacks')}, {words.ranks(inside)} "
        f"{words.verb(inside, 'is', 'are')} in {where}, the longest for {words.seconds(max(inside.values()))}",
        *(job.account(number) for number in missing[:_MAX_FACTS]),
    ]
    basis = Basis.REMAINDER if works or len(missing) > len(inside) else Basis.COMPARISON
    return missing_in(job, missing, f"come to {where}", inside, evidence, basis)


def missing_in(
    job: Job,
    missing: list[int],
    what: str,
    waiting: dict[int, float],
    evidence: list[str],
    basis: Basis,
    *,
    is_incomplete: bool = False,
) -> Verdict:
    """H1 on ranks that have not come to what others wait in; a notice if all have declared what they do instead.

    Args:
        what: they have not done, "called init_process_group".
        waiting: the others, and since when in seconds.
    """
    return job.verdict(
        "still",
        "TW-H1",
        None,
        missing,
        f"{words.ranks(missing)} {words.verb(missing, 'has', 'have')} not {what}; "
        f"{words.count(len(waiting), 'rank')} {words.verb(waiting, 'waits', 'wait')} in it",
        evidence,
        basis,
        victims=len(waiting),
        seconds=max(waiting.values()),
        is_incomplete=is_incomplete,
        level="notice" if all(job.phases.get(number) for number in missing) else "finding",
    )


def called_another(job: Job, wait: Wait, elsewhere: Collection[int]) -> Verdict:
    """H2: an operation that others have not entered, because they are in what those inside have not come to."""
    inside, outside = sorted(wait.blocked), sorted(elsewhere)
    where = " or ".join(sorted({job.ranks[number].activity for number in outside}))
    few, many = sorted((inside, outside), key=len)
    what = wait.title
    suspects = few if len(few) < len(many) else []
    summary = (
        f"{words.ranks(inside)} {words.verb(inside, 'is', 'are')} in {what}, "
        f"and {words.ranks(outside)} in {where}: each waits for the other"
    )
    if not suspects:
        summary += ", and it is unknown which are wrong"
    return job.verdict(
        "hang",
        "TW-H2",
        wait.group,
        suspects,
        summary,
        [f"{words.count(len(inside), 'rank')} in {what}, the longest for {words.seconds(wait.seconds)}",
         *(job.account(number) for number in outside[:_MAX_FACTS])],
        Basis.COMPARISON,
        victims=len(inside) + len(outside) - len(suspects),
        seconds=wait.seconds,
        sides=[] if suspects else [inside, outside],
    )  # fmt: skip
