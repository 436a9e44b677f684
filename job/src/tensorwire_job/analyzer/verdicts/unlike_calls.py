"""Operations that ranks of a group called differently, by what they are in and by the histories of their calls; and
groups that ranks made in unlike orders, or of unlike members.

Where the transport lets other types than those of the rest pass, the job runs on. torch numbers groups as a rank makes
them: where orders differ, one name stands for several lists of members, and those who meet under it are not those who
should.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ... import words
from ...confidence import Basis
from ...model import NEW_GROUP
from ..view.histories import out_of_habit, race

if TYPE_CHECKING:
    from ...model import Operation
    from ..graph import Difference
    from ..view.groups import Group
    from ..view.job import Job, Verdict
    from ..view.waits import Wait

_MAX_FACTS = 3
_RACE = "some called it in the main thread and some in another one: two threads use one group, and chance orders them"
_MAX_SIDES = 4
# All ranks have to name one type in these, and do so in what a page says of them.
_OF_ONE_TYPE = frozenset({
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_reduce",
    "all_reduce_coalesced", "broadcast", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
})  # fmt: skip
_REMEMBERED_SECONDS = 300.0
_NAME = 8  # digits of an id, see ProcessGroup
_MAX_LISTS = 4  # that the evidence has

_Lists = dict[tuple[int, ...], "Group"]
"""Groups of one name by their members."""


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
    summary = f"ranks disagree on {what}, and it is unknown which are wrong: {', '.join(calls)}"
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
            summary = f"ranks disagree on {what}, and it is unknown which are wrong: {told}"
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


def unlike_groups(job: Job, waits: Sequence[Wait]) -> Verdict | None:
    """H2 where ranks stand still in a group, or make one, whose name stands for several lists, if a rank on one of them
    has made another; sides where no rank is on two. Sound jobs may have one name for groups that share no rank."""
    lists: dict[str, _Lists] = defaultdict(dict)
    names: dict[tuple[int, ...], list[set[int]]] = defaultdict(list)
    for group in job.groups.values():
        members = tuple(job.groups.ranks_of(group)) if len(group.id) == 2 * _NAME else ()
        if members and members not in lists[group.id[:_NAME]]:
            lists[group.id[:_NAME]][members] = group
            names[members].append(group.holders)
    crossed = {members: made for members, made in names.items() if len(made) > 1 and _are_apart(made)}
    unlike = [made for made in lists.values() if len(made) > 1 and _are_apart(_holders(made))]
    certain = [made for made in unlike if _contradict(made) or not crossed.keys().isdisjoint(made)]
    held = [group for made in certain for group in made.values()]
    if not any(wait.call == NEW_GROUP or wait.group in held for wait in waits):
        certain = []
    found = certain or [made for made in unlike if any(_stands_still(group, waits) for group in made.values())]
    if not found:
        return None
    # With those who may come to a list, as they have made none of the name, nor this list under another.
    holders = [
        [sorted(g.holders.union(() if _contradict(made) else set(m).difference(*_holders(made), *names[m])))
         for m, g in made.items()] for made in found
    ]  # fmt: skip
    sides = [sorted(each, key=lambda side: (-len(side), side)) for each in holders]
    few = [set(minority(each)) for each in sides]
    blamed = [own or set().union(*each) for own, each in zip(few, sides, strict=True)]
    if certain:
        blamed += [set().union(*made) for made in crossed.values()]
    suspects = sorted(set.intersection(*blamed))
    if len(suspects) > 1 and not all(own == set(suspects) for own in few):
        suspects = []
    facts = [
        f"{words.does(group.holders, 'has', 'have')} made {group.title} of {words.ranks(members)}"
        for made in found
        for members, group in made.items()
    ]
    told = ", ".join(facts[: len(found[0])])
    summary = f"{words.ranks(suspects)} made groups in another order, or of other members, than the other ranks: {told}"
    if not suspects:
        summary = f"ranks made groups in unlike orders, or of unlike members, and it is unknown which are wrong: {told}"
    blocked = {number for wait in waits for number in wait.blocked}
    facts = [*facts[:_MAX_LISTS], *(wait.told() for wait in waits[:_MAX_LISTS])]
    return job.verdict(
        "hang", "TW-H2", next(iter(found[0].values())), suspects, summary, facts,
        Basis.STATE if set(suspects) in few else Basis.COMPARISON, victims=len(blocked.difference(suspects)),
        sides=[] if suspects else sides[0], seconds=max(wait.seconds for wait in waits),
    )  # fmt: skip


def _holders(made: _Lists) -> list[set[int]]:
    return [group.holders for group in made.values()]


def _are_apart(holders: Sequence[set[int]]) -> bool:
    return sum(map(len, holders)) == len(set().union(*holders))


def _contradict(made: _Lists) -> bool:
    """Whether a rank that is on one list has made another."""
    return any(
        members != other and not group.holders.isdisjoint(members) for members in made for other, group in made.items()
    )


def _stands_still(group: Group, waits: Sequence[Wait]) -> bool:
    """Whether ranks stand still in the first operation of a group, or in the making of it, and none is missing."""
    if not group.is_whole:
        return False
    first = (wait for wait in waits if wait.call == NEW_GROUP or (wait.group is group and wait.sequence == 1))
    inside = {number for wait in first if wait.group is None or not wait.missing for number in wait.inside}
    return any(number in inside and not group.member(number).completed for number in group.holders)
