"""Waits that no process group counts: making a group, monitored barriers, receives from any source, keys of a store.

Only stacks tell of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .. import words
from .confidence import Basis
from .patience import LONG

if TYPE_CHECKING:
    from ..model import Rank
    from .job import Job
    from .verdict import Verdict
    from .waits import Wait

_NAMES = ("new_group", "monitored_barrier")  # activities of the probe
_FOR_ANY = "recv from any source"
_KEY = "Store.wait"
_MAX_FACTS = 4


def is_waiting(rank: Rank) -> bool:
    """Whether its stack shows that it waits for others."""
    return rank.activity in (*_NAMES, _FOR_ANY, _KEY)


def in_common_waits(job: Job, numbers: Collection[int], size: int) -> set[int]:
    """Those of some ranks that wait in something for the others, out of as many as `size`.

    In what all have to come to, whoever is there waits, and so does who receives from any source. Who waits for a key
    of a store may wait for one that nobody has to set, unless many do, or a rank is missing that may have to.
    """
    found = {number for number in numbers if job.ranks[number].activity in (*_NAMES, _FOR_ANY)}
    for_key = {number for number in numbers if job.ranks[number].activity == _KEY}
    are_all = len(found) + len(for_key) == len(numbers)
    return found if are_all and 2 * len(for_key) < size else found | for_key


def not_come(job: Job, alive: list[int]) -> Verdict | None:
    """H1 on ranks that have not come to what others wait in, in a job where nobody completes anything."""
    gate = job.thresholds.hang_seconds
    active = (job.ranks[number] for number in job.columns.active)
    waiting = (rank for rank in active if rank.process.is_alive and is_waiting(rank))
    # A server of requests may receive from any source for as long as it likes.
    inside = {rank.rank: rank.activity_seconds or 0.0 for rank in waiting if rank.activity != _FOR_ANY}
    if not inside or max(inside.values()) < gate:
        return None
    missing = [
        number
        for number in alive
        if number not in inside and not any(group.is_open_for(0.0) for group in job.ranks[number].process_groups)
    ]
    if not missing:
        return None
    for_key = all(job.ranks[number].activity == _KEY for number in inside)
    if for_key and not _has_to_set_key(job, missing, inside):
        return None
    where = " or ".join(sorted({job.ranks[number].activity for number in inside}))
    works = [number for number in missing if job.doing(job.ranks[number]) or job.is_busy(job.ranks[number])]
    evidence = [
        f"by {words.verb(inside, 'its stack', 'their stacks')}, {words.ranks(inside)} "
        f"{words.verb(inside, 'is', 'are')} in {where}, the longest for {words.seconds(max(inside.values()))}",
        *(job.account(number) for number in missing[:_MAX_FACTS]),
    ]
    basis = Basis.REMAINDER if works or len(missing) > len(inside) else Basis.COMPARISON
    what = f"set what others wait for ({where})" if for_key else f"come to {where}"
    return missing_in(job, missing, what, inside, evidence, basis)


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
        "no progress",
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


def _has_to_set_key(job: Job, missing: list[int], inside: dict[int, float]) -> bool:
    """Whether the key that most wait for may be one that these few have to set, and they do nothing for it."""
    gate = job.thresholds.hang_seconds
    may_work = max(inside.values()) < LONG * gate
    ranks = [job.ranks[number] for number in missing]
    works = any(job.has_done(rank, gate) or (may_work and job.is_busy(rank)) for rank in ranks)
    return len(missing) < len(inside) and not works


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
