"""Whether ranks that are in the same operation of a process group called the same."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from .. import words
from .confidence import Basis

if TYPE_CHECKING:
    from ..model import Operation
    from .groups import Group
    from .job import Job
    from .verdict import Verdict

# Their inputs may differ in size between ranks.
_UNEVEN = frozenset({"all_to_all", "all_to_all_single", "all_gather", "gather", "scatter"})


def sides(operations: dict[int, Operation]) -> list[list[int]]:
    """The ranks by what they called, the largest side first; one side where all agree.

    Roots are compared where they are known; a rank whose root is not known is taken to agree with most, or left out
    where no root has most.
    """
    known = {number: operation for number, operation in operations.items() if operation.signature or operation.name}
    hashed = all(operation.signature for operation in known.values())
    by_call: dict[Hashable, dict[int, list[int]]] = {}
    for number, operation in known.items():
        by_root = by_call.setdefault(operation.signature if hashed else _call(operation), {})
        by_root.setdefault(operation.root, []).append(number)
    found = []
    for by_root in by_call.values():
        unknown = by_root.pop(-1, [])
        of_root = sorted(by_root.values(), key=len, reverse=True) or [[]]
        if len(of_root) == 1 or len(of_root[0]) > len(of_root[1]):
            of_root[0] += unknown
        found += of_root
    return sorted((sorted(side) for side in found), key=lambda side: (-len(side), side))


def _call(operation: Operation) -> Hashable:
    numel = -1 if operation.name in _UNEVEN else operation.numel
    return operation.name, operation.dtype, numel


def mismatch(job: Job) -> Verdict | None:
    """The verdict on the first operation, dead ranks' last ones included, that ranks called differently."""
    rows = job.columns.rows
    unlike = job.groups.unlike(rows.calls, (rows.calls != 0) & ~rows.pairwise)
    for group in sorted(unlike, key=lambda group: (-len(group.members), group.id)):
        by_sequence: dict[int, dict[int, Operation]] = {}
        for number, operation in group.operations(group.numbers.tolist()).items():
            if not operation.is_pairwise:
                by_sequence.setdefault(operation.sequence, {})[number] = operation
        for sequence in sorted(by_sequence):
            found = sides(by_sequence[sequence])
            if len(found) > 1:
                return inconsistent(job, group, sequence, found, by_sequence[sequence])
    return None


def inconsistent(
    job: Job,
    group: Group,
    sequence: int,
    found: list[list[int]],
    operations: dict[int, Operation],
    explained_by: list[int] | None = None,
) -> Verdict:
    """H2: the minority is to blame; where no side is a majority, both are named and the culprit is unknown.

    What sibling groups called as the operation of this number counts where it breaks a tie.

    Args:
        explained_by: the ranks that are to blame, where that is known.
    """
    majority = 2 * len(found[0]) > sum(map(len, found))
    suspects = sorted(number for side in found[1:] for number in side) if majority else []
    if explained_by is not None:
        suspects, majority = explained_by, True
        found = sorted(found, key=lambda side: not set(side).isdisjoint(suspects))
    siblings = {} if majority else _of_siblings(job, group, sequence)
    if siblings:
        usual = sides(operations | siblings)[0]
        alike = sorted(siblings.keys() & set(usual))
        others = sorted(number for side in found for number in side if number not in usual)
        if 2 * len(usual) > len(operations) + len(siblings) and 0 < len(others) < len(operations):
            suspects = others
            found = [sorted(set(usual) & operations.keys()), *([number] for number in others)]
    evidence = [f"{words.ranks(side)} called {words.call(operations[side[0]])} as #{sequence}" for side in found[:4]]
    described = {words.call(operations[side[0]]) for side in found}
    if len(described) < len(found):
        evidence.append("the signatures of these calls differ, though what is known of them reads the same")
    if suspects and not majority:
        evidence.append(f"{words.ranks(alike)} called it as {words.ranks(found[0])} did, in their own {group.title}")
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
        Basis.STATE if majority or not suspects else Basis.COMPARISON,
        victims=len(group.members) - len(suspects),
        sides=[] if suspects else found,
        seconds=max((age for age in ages if age is not None), default=None),
    )


def _of_siblings(job: Job, group: Group, sequence: int) -> dict[int, Operation]:
    """What ranks called as the operation of this number in other groups of this name and size."""
    found: dict[int, Operation] = {}
    for other in job.groups.values():
        is_sibling = group.name and (other.name, other.size) == (group.name, group.size)
        if is_sibling and group.members.keys().isdisjoint(other.members):
            for number, member in other.members.items():
                if member.operation is not None and member.operation.sequence == sequence:
                    found[number] = member.operation
    return found
