"""Ranks that do not follow the order of operations which all others follow, told by counts alone.

Ranks of a job mostly run one program. Process groups of one kind that share out the ranks among them ("tp" of a mesh,
or tp0, tp1 and so on) are one place of that program: what a rank has entered in each such place says how far it is.
If two ranks run the same program, one is as far as the other or further in every place. A rank that is further
in one place and less far in another has left the order, or the other one has.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from ...numbered import without_number

if TYPE_CHECKING:
    from ...columns import Ints
    from .groups import Group
    from .job import Job

_MAX_POSITIONS = 64  # of different ranks: pairs of them are compared


def out_of_step(job: Job) -> list[int]:
    """The few ranks without which all others follow one order; none where that is not known of just one such set."""
    places = _places(job)
    if len(places) < 2:
        return []
    positions, found_at, counts = np.unique(places, axis=1, return_inverse=True, return_counts=True)
    if len(counts) > _MAX_POSITIONS:
        return []
    ahead = (positions[:, :, None] > positions[:, None, :]).any(axis=0)
    rivals = (ahead & ahead.T).sum(axis=0)
    # All pairs that disagree have it in common: without it none is left.
    common = np.flatnonzero((rivals > 0) & (2 * rivals == rivals.sum()))
    few = common[counts[common] == counts[common].min(initial=len(job.ranks))]
    if len(few) != 1 or 2 * counts[few[0]] >= len(job.ranks):
        return []
    found: list[int] = job.columns.numbers[found_at.ravel() == few[0]].tolist()
    return found


def _places(job: Job) -> list[Ints]:
    """The operations that ranks have entered in each place of the program."""
    kinds: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for group in job.groups.values():
        if group.name and not group.peers:
            kinds[without_number(group.name), group.size].append(group)
    places = []
    for groups in kinds.values():
        members = np.concatenate([group.places for group in groups])
        if np.array_equal(np.sort(members), np.arange(len(job.ranks))):  # each rank is a member of just one
            places.append(np.concatenate([group.enqueued for group in groups])[np.argsort(members)])
    return places
