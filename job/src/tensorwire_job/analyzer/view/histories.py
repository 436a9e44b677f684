"""The first calls in which the histories of ranks differ, and ranks that leave the order of calls of the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ...model import IN_THREAD
from ...numbered import without_number
from ..graph import Entry, first_differences, last_stray, unequal_exchanges

if TYPE_CHECKING:
    from ...columns import Ints, RankColumns
    from ...model import Call
    from ..graph import Difference
    from .groups import Group, Groups

_MAX_RANKS = 1024  # the most whose histories are compared: of a larger job a part
_MAX_POSITIONS = 64  # of different ranks: pairs of them are compared


class CallHistories:
    """Compares histories, and remembers the result: ranks that stand still read theirs only once."""

    def __init__(self) -> None:
        self._calls: Mapping[int, Sequence[Call]] = {}
        self._found: list[Difference] = []

    def differences(self, columns: RankColumns, groups: Groups) -> list[Difference]:
        """The first differences of what was called, else of what ranks are in now."""
        calls = columns.calls
        if len(calls) > _MAX_RANKS:
            step = -(-len(calls) // _MAX_RANKS)
            calls = {number: calls[number] for number in sorted(calls)[::step]}
        before = self._calls
        if calls.keys() != before.keys() or any(each is not before[number] for number, each in calls.items()):
            self._calls, self._found = calls, _compare(calls, groups)
        return self._found or _of_operations(columns, groups)


def _compare(calls: Mapping[int, Sequence[Call]], groups: Groups) -> list[Difference]:
    """Differences of what was called, else of what an all_to_all exchanged."""
    kinds = {group.id: (without_number(group.name), group.size) for group in groups.values() if group.name}
    histories = {number: _entries(each, kinds) for number, each in calls.items()}
    found = first_differences(histories) or _exchanges(calls, groups)
    raced = [replace(each, accused=()) for each in found if race(calls, (each.group, each.number))]
    return raced or [each if each.accused else _by_line(each, calls) for each in found]


def race(calls: Mapping[int, Sequence[Call]], at: tuple[Hashable, int]) -> bool:
    """Whether some ranks made the call of this group and number in their main thread and some in another one: which of
    two threads comes first is chance, on all ranks."""
    made = (each for own in calls.values() for each in own if (each.group, each.operation.sequence) == at)
    return len({each.line & IN_THREAD for each in made}) > 1


def _by_line(difference: Difference, calls: Mapping[int, Sequence[Call]]) -> Difference:
    """With the one accused whose line had called something else before, and never that."""
    at = difference.group, difference.number
    accused = tuple(number for number in chain(*difference.sides) if _is_new(calls[number], at))
    return replace(difference, accused=accused, is_by_line=True) if len(accused) == 1 else difference


def _is_new(calls: Sequence[Call], at: tuple[Hashable, int]) -> bool:
    """Whether the line of the call of this group and number had made others, and never that."""
    index = next((i for i, call in enumerate(calls) if (call.group, call.operation.sequence) == at), None)
    # Tags of messages may be new each time, and their numbers differ where a probe began between two of them.
    if index is None or calls[index].operation.is_pairwise or not calls[index].line:
        return False
    call, before = calls[index], calls[:index]
    made = {_habit(each) for each in before if (each.line, each.group) == (call.line, call.group)}
    return bool(made) and _habit(call) not in made


def _of_operations(columns: RankColumns, groups: Groups) -> list[Difference]:
    """Differences of the operations that ranks are in, or were in last."""
    rows = columns.rows
    unlike = groups.unlike(rows.calls, (rows.calls != 0) & ~rows.pairwise)
    kinds = {without_number(group.name) for group in unlike}
    if not unlike:
        return []
    histories: dict[int, list[Entry]] = defaultdict(list)
    for group in sorted(groups.values(), key=lambda each: (each.name, each.id)):  # what ranks are in has no other order
        kind = without_number(group.name)
        if group in unlike or (group.name and kind in kinds):
            for number, operation in group.operations(group.numbers.tolist()).items():
                if not operation.is_pairwise:
                    what = operation.signature or None
                    entry = Entry(group.id, operation.sequence, what, (kind, group.size), operation.known_root)
                    histories[number].append(entry)
    return first_differences(histories)


def _exchanges(calls_of: Mapping[int, Sequence[Call]], groups: Groups) -> list[Difference]:
    """The first all_to_all of each group whose counts do not fit each other."""
    at: dict[tuple[str, int], dict[int, Sequence[int]]] = defaultdict(dict)
    for number, calls in calls_of.items():
        for call in calls:
            if call.counts:
                at[call.group, call.operation.sequence][number] = call.counts
    found: dict[str, Difference] = {}
    for (group_id, number), counts in sorted(at.items()):
        group = groups.get(group_id)
        members = groups.ranks_of(group) if group is not None and group_id not in found else ()
        if members and all(len(each) == 2 * len(members) for each in counts.values()):
            difference = unequal_exchanges(group_id, number, members, counts)
            if difference is not None:
                found[group_id] = difference
    return list(found.values())


def _entries(calls: Sequence[Call], kinds: Mapping[str, Hashable]) -> list[Entry]:
    # A rank that receives from any source takes messages that would have been the next of their sender.
    takes_any = any(call.operation.is_pairwise and call.operation.root < 0 for call in calls)
    return [
        Entry(group, op.sequence, op.signature or None, None if op.is_pairwise else kinds.get(group), op.known_root)
        for group, op in ((call.group, call.operation) for call in calls)
        if not (takes_any and op.name == "recv")
    ]


def out_of_habit(columns: RankColumns, numbers: Iterable[int]) -> list[int]:
    """The one of these ranks whose last calls are not in the order of its calls before, nor of those of the others."""
    return last_stray({number: [_habit(call) for call in columns.calls.get(number, ())] for number in numbers})


def _habit(call: Call) -> Hashable:
    op = call.operation
    what = (op.dtype, op.numel, op.root) if op.is_pairwise else op.signature  # a tag may be new each time
    return call.line, call.group, op.name, what, call.counts


def out_of_step(columns: RankColumns, groups: Groups) -> list[int]:
    """The few ranks without which all others follow one order, told by counts alone; none where that is not known of
    just one such set.

    Ranks of a job mostly run one program. Process groups of one kind that share out the ranks among them ("tp" of a
    mesh, or tp0, tp1 and so on) are one place of that program: what a rank has entered in each such place says how far
    it is. If two ranks run the same program, one is as far as the other or further in every place. A rank that is
    further in one place and less far in another has left the order, or the other one has.
    """
    places = _places(columns, groups)
    if len(places) < 2:
        return []
    positions, found_at, counts = np.unique(places, axis=1, return_inverse=True, return_counts=True)
    if len(counts) > _MAX_POSITIONS:
        return []
    ahead = (positions[:, :, None] > positions[:, None, :]).any(axis=0)
    rivals = (ahead & ahead.T).sum(axis=0)
    # All pairs that disagree have it in common: without it none is left.
    common = np.flatnonzero((rivals > 0) & (2 * rivals == rivals.sum()))
    few = common[counts[common] == counts[common].min(initial=len(columns))]
    if len(few) != 1 or 2 * counts[few[0]] >= len(columns):
        return []
    found: list[int] = columns.numbers[found_at.ravel() == few[0]].tolist()
    return found


def _places(columns: RankColumns, groups: Groups) -> list[Ints]:
    """The operations that ranks have entered in each place of the program."""
    kinds: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for group in groups.values():
        if group.name and not group.peers:
            kinds[without_number(group.name), group.size].append(group)
    places = []
    for alike in kinds.values():
        members = np.concatenate([group.places for group in alike])
        if np.array_equal(np.sort(members), np.arange(len(columns))):  # each rank is a member of just one
            places.append(np.concatenate([group.enqueued for group in alike])[np.argsort(members)])
    return places
