"""Groups that ranks made in unlike orders, or of unlike members. torch numbers groups as a rank makes them: then one
name stands for several lists of members, and those who meet under it are not those who should."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from ... import words
from ...confidence import Basis
from ...model import NEW_GROUP
from ..graph import Entry, first_differences
from .unlike_calls import minority

if TYPE_CHECKING:
    from ..view.groups import Group
    from ..view.job import Job, Verdict
    from ..view.waits import Wait

_NAME = 8  # digits of an id, see ProcessGroup
_MAX_FACTS = 4

_Made = Mapping[Hashable, "Group"]
"""Groups of one name by their members, or groups of one list of members by their names."""


def unlike_groups(job: Job, waits: Sequence[Wait] = ()) -> Verdict | None:
    """H2 where ranks stand still in a group, or make one, or where they have ended, if its name stands for several
    lists and a rank on one of them has made another; sides where no rank is on two, or where one list has several
    names. Sound jobs may have one name for groups that share no rank."""
    lists: dict[str, dict[Hashable, Group]] = defaultdict(dict)
    names: dict[Hashable, dict[Hashable, Group]] = defaultdict(dict)
    for group in job.groups.values():
        members = tuple(job.groups.ranks_of(group)) if len(group.id) == 2 * _NAME else ()
        if members and members not in lists[group.id[:_NAME]]:
            lists[group.id[:_NAME]][members] = names[members][group.id] = group
    crossed = {members: made for members, made in names.items() if _are_apart(made)}
    unlike = [made for made in lists.values() if _are_apart(made)]
    certain = [made for made in unlike if _contradict(job, made) or not crossed.keys().isdisjoint(made)]
    held = [group for made in certain for group in made.values()]
    if waits and not any(wait.call == NEW_GROUP or wait.group in held for wait in waits):
        certain = []
    found = certain or [made for made in unlike if any(_stands_still(group, waits) for group in made.values())]
    found = found or [made for made in crossed.values() if all(_stands_still(group, waits) for group in made.values())]
    if not found:
        return None
    of_lists = {members: _holders(made) for members, made in names.items()}
    sides = [_sides(job, made, of_lists) for made in found]
    few = [set(minority(each)) for each in sides]
    blamed = [own or set().union(*each) for own, each in zip(few, sides, strict=True)]
    if certain:
        blamed += [_holders(made) for made in crossed.values()]
    suspects = sorted(set.intersection(*blamed))
    if len(suspects) > 1 and not all(own == set(suspects) for own in few):
        suspects = []
    suspects = suspects or _made_otherwise(job, set.union(*map(_holders, found)))
    facts = [
        f"{words.does(group.holders, 'has', 'have')} made {group.title} of {words.ranks(job.groups.ranks_of(group))}"
        for made in found
        for group in made.values()
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
        sides=[] if suspects else sides[0], seconds=max((wait.seconds for wait in waits), default=None),
    )  # fmt: skip


def _holders(made: _Made) -> set[int]:
    return set().union(*(group.holders for group in made.values()))


def _sides(job: Job, made: _Made, of_lists: Mapping[Hashable, set[int]]) -> list[list[int]]:
    """The holders of each list, the most first, with those who may come to it: they have made none of the name, nor
    this list under another."""
    of_name, none_comes = _holders(made), _contradict(job, made)
    sides = []
    for group in made.values():
        members = tuple(job.groups.ranks_of(group))
        to_come = set() if none_comes else set(members) - of_name - of_lists[members]
        sides.append(sorted(group.holders.union(to_come)))
    return sorted(sides, key=lambda side: (-len(side), side))


def _are_apart(made: _Made) -> bool:
    """Whether these are several, and no rank has two of them."""
    return len(made) > 1 and sum(len(group.holders) for group in made.values()) == len(_holders(made))


def _contradict(job: Job, made: _Made) -> bool:
    """Whether a rank that is on one list has made another."""
    lists = [(group, set(job.groups.ranks_of(group))) for group in made.values()]
    times = Counter(number for _, members in lists for number in members)
    return any(times[number] > (number in members) for group, members in lists for number in group.holders)


def _made_otherwise(job: Job, candidates: set[int]) -> list[int]:
    """The one of these whose groups, in the order of making, first differ in their shape from those of most ranks."""
    made = {n: [_shape(each.members) for each in rank.process_groups] for n, rank in job.ranks.items()}
    histories = {n: [Entry("", place, shape) for place, shape in enumerate(shapes)] for n, shapes in made.items()}
    accused = [number for difference in first_differences(histories) for number in difference.accused]
    return accused if len(accused) == 1 and candidates.issuperset(accused) else []


def _shape(members: Sequence[int]) -> Hashable:
    """The size of a list, and how far apart its first two members are, and its first and its last."""
    return (len(members), members[min(1, len(members) - 1)] - members[0], members[-1] - members[0]) if members else None


def _stands_still(group: Group, waits: Sequence[Wait]) -> bool:
    """Whether ranks stand still in the first operation of a group, or in the making of it, and none is missing."""
    if not group.is_whole:
        return False
    first = (wait for wait in waits if wait.call == NEW_GROUP or (wait.group is group and wait.sequence == 1))
    inside = {number for wait in first if wait.group is None or not wait.missing for number in wait.inside}
    return any(number in inside and not group.member(number).completed for number in group.holders)
