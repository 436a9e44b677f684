"""Operations that ranks of a group called differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import words
from ..view.confidence import Basis

if TYPE_CHECKING:
    from ...model import Operation
    from ..view.groups import Group
    from ..view.job import Job
    from ..view.verdict import Verdict


def inconsistent(
    job: Job,
    group: Group,
    sequence: int,
    found: list[list[int]],
    operations: dict[int, Operation],
    explained_by: list[int] | None = None,
    basis: Basis = Basis.STATE,
) -> Verdict:
    """H2: the minority is to blame; where no side is a majority, both are named and the culprit is unknown.

    Args:
        explained_by: the ranks that are to blame, where that is known.
    """
    majority = 2 * len(found[0]) > sum(map(len, found))
    suspects = sorted(number for side in found[1:] for number in side) if majority else []
    if explained_by is not None:
        basis = Basis.STATE if majority and suspects == explained_by else basis
        suspects, majority = explained_by, True
        found = sorted(found, key=lambda side: not set(side).isdisjoint(suspects))
    evidence = [f"{words.ranks(side)} called {words.call(operations[side[0]])} as #{sequence}" for side in found[:4]]
    described = {words.call(operations[side[0]]) for side in found}
    if len(described) < len(found):
        evidence.append("the signatures of these calls differ, though what is known of them reads the same")
    if suspects:
        summary = (
            f"{words.ranks(suspects)} called {words.call(operations[suspects[0]])} as #{sequence} of {group.title}, "
            f"the other ranks {words.call(operations[found[0][0]])}"
        )
    else:
        parts = [f"{words.ranks(side)} called {words.call(operations[side[0]])}" for side in found[:4]]
        summary = (
            f"ranks disagree on #{sequence} of {group.title}, and it is unknown which are wrong: {', '.join(parts)}"
        )
    ages = [member.open_seconds for number, member in group.members.items() if number in operations]
    return job.verdict(
        "hang",
        "TW-H2",
        group,
        suspects,
        summary,
        evidence,
        basis,
        victims=len(group.members) - len(suspects),
        sides=[] if suspects else found,
        seconds=max((age for age in ages if age is not None), default=None),
    )
