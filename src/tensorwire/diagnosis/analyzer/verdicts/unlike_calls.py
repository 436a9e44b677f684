"""What the histories of ranks say: the first calls that differ, and whom most of the others speak against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import words
from ..view.confidence import Basis
from ..view.histories import out_of_habit

if TYPE_CHECKING:
    from ..graph import Difference
    from ..view.job import Job
    from ..view.verdict import Verdict
    from ..view.waits import Wait

_MAX_FACTS = 3


def accused(job: Job) -> list[int]:
    """Ranks that the first difference speaks against."""
    return sorted({number for difference in job.differences for number in difference.accused})


def parted(job: Job) -> list[str]:
    """Where histories part, as facts for the evidence."""
    facts = []
    for difference in job.differences[:_MAX_FACTS]:
        calls = []
        for side in difference.sides[:2]:
            call = next(
                (
                    each.operation
                    for each in job.columns.calls.get(side[0], ())
                    if (each.group, each.operation.sequence) == (difference.group, difference.number)
                ),
                None,
            )
            calls.append(f"{words.ranks(side)} called {words.call(call)}" if call else words.ranks(side))
        group = job.groups.get(str(difference.group))
        title = group.title if group is not None else str(difference.group)
        facts.append(f"#{difference.number} of {title} is the first call that differs: {', '.join(calls)}")
    return facts


def unlike_calls(job: Job, wait: Wait | None = None) -> Verdict | None:
    """H2 on the first calls that differ, of ranks that live and of those that have ended.

    Args:
        wait: only those calls that come before what these ranks wait in, or are this.
    """
    for difference in job.differences:
        group = job.groups.get(str(difference.group))
        if group is None:
            continue
        if wait is not None and (wait.group is None or (group.id, difference.number) > (wait.group.id, wait.sequence)):
            continue
        if wait is not None and wait.group is not None and group.id != wait.group.id:
            continue
        suspects = list(difference.accused) or _by_habit(job, difference)
        sides = [] if suspects else [list(side) for side in difference.sides]
        what = f"#{difference.number} of {group.title}"
        if suspects:
            summary = f"{words.ranks(suspects)} called something else than the other ranks as {what}"
        else:
            told = " or ".join(words.ranks(side) for side in sides)
            summary = f"ranks disagree on {what}, and it is unknown which are wrong: {told}"
        return job.verdict(
            "hang", "TW-H2", group, suspects, summary, parted(job),
            Basis.STATE if difference.accused and 2 * len(suspects) < len(group.members) else Basis.COMPARISON,
            victims=len(group.members) - len(suspects), sides=sides,
        )  # fmt: skip
    return None


def _by_habit(job: Job, difference: Difference) -> list[int]:
    """The one of two sides whose last calls do not follow each other as those before did."""
    found = out_of_habit(job.columns, [number for side in difference.sides for number in side])
    return found if len(found) == 1 else []
