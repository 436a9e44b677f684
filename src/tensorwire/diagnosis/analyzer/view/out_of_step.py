"""Ranks that do not follow the order of operations which all others follow, told by counts alone.

Ranks of a job mostly run one program. Process groups of one kind that share out the ranks among them ("tp" of a mesh,
or tp0, tp1 and so on) are one place of that program: what a rank has entered in each such place says how far it is.
Of two ranks that run the same program, one is as far as the other or further in every place. A rank that is further
in one place and less far in another has left the order, or the other one has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ...numbered import without_number

if TYPE_CHECKING:
    from .groups import Group
    from .job import Job

_MAX_POSITIONS = 64  # of different ranks: pairs of them are compared

Position = tuple[int, ...]


def out_of_step(job: Job) -> list[int]:
    """The few ranks without which all others follow one order; none where that is not known of just one such set."""
    at: dict[Position, list[int]] = defaultdict(list)
    for number, position in _positions(job).items():
        at[position].append(number)
    if len(at) > _MAX_POSITIONS:
        return []
    rivals = {mine: [other for other in at if not _follows(mine, other)] for mine in at}
    num_pairs = sum(map(len, rivals.values())) // 2
    # All pairs that disagree have it in common: without it none is left.
    common = [position for position, others in rivals.items() if num_pairs and len(others) == num_pairs]
    common.sort(key=lambda position: len(at[position]))
    if not common or (len(common) > 1 and len(at[common[0]]) == len(at[common[1]])):
        return []
    found = sorted(at[common[0]])
    return found if 2 * len(found) < len(job.ranks) else []


def _positions(job: Job) -> dict[int, Position]:
    """What each rank has entered in each place of the program."""
    entered = [
        dict(chain.from_iterable(zip(group.numbers.tolist(), group.enqueued.tolist(), strict=True) for group in groups))
        for groups in _places(job)
    ]
    return {number: tuple(of_place[number] for of_place in entered) for number in job.ranks}


def _places(job: Job) -> list[list[Group]]:
    """Groups of one size that share out the ranks: of names that differ in a number, or else of one name."""
    kinds = _by_name(job.groups.values(), without_number)
    places = []
    for groups in kinds:
        if _share_out(job, groups):
            places.append(groups)
        else:
            places += [same for same in _by_name(groups, str) if _share_out(job, same)]
    return places


def _by_name(groups: Iterable[Group], kind_of: Callable[[str], str]) -> list[list[Group]]:
    """Groups that know what they are called, those of one kind and size together."""
    kinds: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for group in groups:
        if group.name and not group.peers:
            kinds[kind_of(group.name), group.size].append(group)
    return list(kinds.values())


def _share_out(job: Job, groups: list[Group]) -> bool:
    """Whether each rank is a member of just one of these."""
    members = np.sort(np.concatenate([group.numbers for group in groups]))
    return np.array_equal(members, job.columns.numbers)


def _follows(mine: Position, other: Position) -> bool:
    """Whether one of the two is as far as the other everywhere, or further."""
    pairs = list(zip(mine, other, strict=True))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)
