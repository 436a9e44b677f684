"""Groups that ranks made in unlike orders, or of unlike members. torch numbers groups as a rank makes them: then one
name stands for several lists of members, and those who meet under it are not those who should."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ... import words
from ...confidence import Basis
from ...model import NEW_GROUP
from .unlike_calls import minority

if TYPE_CHECKING:
    from ..view.groups import Group
    from ..view.job import Job, Verdict
    from ..view.waits import Wait

_NAME = 8  # digits of an id, see ProcessGroup
_MAX_FACTS = 4

_Lists = dict[tuple[int, ...], "Group"]
"""Groups of one name by their members."""


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
        [
            sorted(g.holders.union(() if _contradict(made) else set(m).difference(*_holders(made), *names[m])))
            for m, g in made.items()
        ]
        for made in found
    ]
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
    facts = [*facts[:_MAX_FACTS], *(wait.told() for wait in waits[:_MAX_FACTS])]
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
