"""Operations that ranks of a group called differently, by what they are in and by the histories of their calls.

Where the transport lets other types than those of the rest pass, the job runs on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ... import words
from ...confidence import Basis
from ..view.histories import out_of_habit, race

if TYPE_CHECKING:
    from ...model import Operation
    from ..graph import Difference
    from ..view.groups import Group
    from ..view.job import Job, Verdict
    from ..view.waits import Wait

_MAX_FACTS = 3
_RACE = "some called it in the main thread and some in another one"
_WHY = ("and it is unknown which are wrong", f"as {words.BY_CHANCE}")  # the latter where threads race
_MAX_SIDES = 4
# All ranks have to name one type in these, and do so in what a page says of them.
_OF_ONE_TYPE = frozenset({
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_reduce",
    "all_reduce_coalesced", "broadcast", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
})  # fmt: skip
_REMEMBERED_SECONDS = 300.0


def minority(sides: Sequence[Sequence[int]]) -> list[int]:
    """All but those of the largest side, if that is more than half."""
    return sorted(number for side in sides[1:] for number in side) if 2 * len(sides[0]) > sum(map(len, sides)) else []


def called(sides: Sequence[Sequence[int]], operations: Mapping[int, Operation]) -> list[str]:
    """What each side called."""
    return [f"{words.ranks(side)} called {words.call(operations[side[0]])}" for side in sides[:_MAX_SIDES]]


def inconsistent(job: Job, wait: Wait, explained_by: list[int] | None = None, basis: Basis = Basis.STATE) -> Verdict:
    """H2 on what ranks are in: the minority is to blame; where there is none, the sides are told and no culprit.

    Args:
        explained_by: the ranks that are to blame, where that is known.
    """
    group, sides = wait.of_group, wait.sides
    operations = group.operations(wait.inside)
    suspects = minority(sides) or _outvoted(job, wait)
    is_race = not wait.is_pairwise and race(job.columns.calls, (group.id, wait.sequence))
    if is_race:
        suspects, basis = [], Basis.REMAINDER
    elif explained_by is not None:
        basis = Basis.STATE if suspects == explained_by else basis
        suspects = explained_by
        sides = sorted(sides, key=lambda side: not set(side).isdisjoint(suspects))
    calls, what = called(sides, operations), f"#{wait.sequence} of {group.title}"
    summary = f"ranks disagree on {what}, {_WHY[is_race]}: {', '.join(calls)}"
    if suspects:
        its, theirs = words.call(operations[suspects[0]]), words.call(operations[sides[0][0]])
        summary = f"{words.ranks(suspects)} called {its} as {what}, the other ranks {theirs}"
    facts = [f"{call} as #{wait.sequence}" for call in calls] + [_RACE] * is_race
    if wait.is_pairwise:
        facts.append("the signatures of these calls differ, which size, dtype and tag go into")
    elif len({words.call(operations[side[0]]) for side in sides}) < len(sides):
        facts.append("the signatures of these calls differ, though what is known of them reads the same")
    return job.verdict(
        "hang", "TW-H2", group, suspects, summary, facts, basis, victims=len(wait.members) - len(suspects),
        sides=[] if suspects else sides, seconds=wait.seconds, is_incomplete=job.are_stale(wait.inside),
    )  # fmt: skip


def _outvoted(job: Job, wait: Wait) -> list[int]:
    """The ranks inside that most speak against of all whose histories have this call: others have left it."""
    for each in job.differences:
        if (each.group, each.number) == (wait.of_group.id, wait.sequence) and not each.is_by_line:
            return list(each.accused) if set(each.accused) < set(wait.inside) else []
    return []


def parted(job: Job) -> list[str]:
    """Where histories part, as facts for the evidence."""
    facts = []
    for difference in job.differences[:_MAX_FACTS]:
        at = (difference.group, difference.number)
        calls = []
        for side in difference.sides[:2]:
            own = job.columns.calls.get(side[0], ())
            made = [words.call(c.operation) for c in own if (c.group, c.operation.sequence) == at]
            calls.append(f"{words.ranks(side)} called {made[0]}" if made else words.ranks(side))
        facts.append(f"{_title(job, difference)} is the first call that differs: {', '.join(calls)}")
        if difference.is_by_line:
            who = words.ranks(difference.accused)
            facts.append(
                f"the line of the script from which {who} called it had called something else before, and never this"
            )
    return facts


def unlike_calls(job: Job, wait: Wait | None = None) -> Verdict | None:
    """H2 on the first calls that differ, of ranks that live and of those that have ended.

    Args:
        wait: only those calls of its group that come before what these ranks wait in, or are this.
    """
    for difference in job.differences:
        group = job.groups.get(str(difference.group))
        is_later = wait is not None and (group is not wait.group or difference.number > wait.sequence)
        if group is None or is_later:
            continue
        is_race = race(job.columns.calls, (difference.group, difference.number))
        suspects = list(difference.accused)
        if not suspects and not is_race:
            suspects = out_of_habit(job.columns, chain(*difference.sides))
        sides = [] if suspects else [list(side) for side in difference.sides]
        what = _title(job, difference)
        summary = f"{words.ranks(suspects)} called something else than the other ranks as {what}"
        if sides:
            told = " or ".join(map(words.ranks, sides))
            summary = f"ranks disagree on {what}, {_WHY[is_race]}: {told}"
        is_firm = difference.accused and not difference.is_by_line and 2 * len(suspects) < len(group.members)
        basis = Basis.STATE if is_firm else Basis.REMAINDER if is_race else Basis.COMPARISON
        return job.verdict(
            "hang", "TW-H2", group, suspects, summary, parted(job) + [_RACE] * is_race, basis,
            victims=len(group.members) - len(suspects), sides=sides, is_incomplete=job.are_stale(group.members),
        )  # fmt: skip
    return None


def _title(job: Job, difference: Difference) -> str:
    group = job.groups.get(str(difference.group))
    return f"#{difference.number} of {difference.group if group is None else group.title}"


def unlike_types(job: Job, before: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """The notices that stand, one for each process group: those of now, and those of a while before. Ranks describe an
    operation only where they stand still for a moment."""
    dtypes = job.columns.rows.dtypes
    unlike = job.groups.unlike(dtypes, dtypes != 0)  # nearly always there is none
    found = {**before, **{group.id: verdict for group in unlike if (verdict := _unlike(job, group))}}
    since = job.time - _REMEMBERED_SECONDS
    return {each: told for each, told in found.items() if each in job.groups and told.finding.time > since}


def _unlike(job: Job, group: Group) -> Verdict | None:
    by_type: dict[tuple[int, str], dict[str, list[int]]] = {}
    operations = group.operations(group.numbers.tolist())
    for number, operation in operations.items():
        if operation.name in _OF_ONE_TYPE and operation.dtype:
            of_call = by_type.setdefault((operation.sequence, operation.name), {})
            of_call.setdefault(operation.dtype, []).append(number)
    for (sequence, _), types in by_type.items():
        if len(types) > 1:
            sides = sorted(map(sorted, types.values()), key=lambda side: (-len(side), side))
            suspects, calls = minority(sides), called(sides, operations)
            return job.verdict(
                "unlike types", "TW-H2", group, suspects,
                f"#{sequence} of {group.title} was called with different types, and nothing stopped: its result is "
                f"wrong; {', '.join(calls)}",
                [f"{call} as #{sequence}" for call in calls], Basis.STATE, victims=0, level="notice",
                sides=[] if suspects else sides,
            )  # fmt: skip
    return None
