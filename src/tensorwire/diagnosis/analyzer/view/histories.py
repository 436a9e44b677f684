"""The first calls in which the histories of ranks differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...numbered import without_number
from ..graph import Entry, first_differences, strays, unequal_exchanges

if TYPE_CHECKING:
    from ...model import Call, Rank
    from ..graph import Difference
    from .groups import Groups

Kinds = Mapping[str, Hashable]
"""Of groups by id: those of one kind make the same calls."""

_LATE_CALLS = 8
_MAX_RANKS = 4096  # whose histories are compared


def compare(ranks_of_job: Mapping[int, Rank], groups: Groups) -> list[Difference]:
    """The first differences: of what was called, of the lines that called it, else of what ranks are in now."""
    kinds = {group.id: (without_number(group.name), group.size) for group in groups.values() if group.name}
    ranks = [ranks_of_job[number] for number in list(ranks_of_job)[:_MAX_RANKS]]
    for entries in (_by_call, _by_root, _by_line, _by_operation):
        found = first_differences({rank.rank: entries(rank, kinds) for rank in ranks})
        if found:
            return found
        if entries is _by_root and (found := _exchanges(groups, ranks)):
            return found
    return []


def _exchanges(groups: Groups, ranks: Sequence[Rank]) -> list[Difference]:
    """The first all_to_all of each group whose counts do not fit each other."""
    at: dict[tuple[str, int], dict[int, Sequence[int]]] = defaultdict(dict)
    for rank in ranks:
        for call in rank.calls:
            if call.counts:
                at[call.group, call.operation.sequence][rank.rank] = call.counts
    found: dict[str, Difference] = {}
    for (group_id, number), counts in sorted(at.items()):
        group = groups.get(group_id)
        members = groups.ranks_of(group) if group is not None and group_id not in found else ()
        if members and all(len(each) == 2 * len(members) for each in counts.values()):
            difference = unequal_exchanges(group_id, number, members, counts)
            if difference is not None:
                found[group_id] = difference
    return list(found.values())


def _by_call(rank: Rank, kinds: Kinds) -> list[Entry]:
    # A rank that receives from any source takes messages that would have been the next of their sender.
    takes_any = any(call.operation.is_pairwise and call.operation.root < 0 for call in rank.calls)
    found = []
    for call in rank.calls:
        operation = call.operation
        if not operation.is_pairwise:
            what = operation.signature or None
            found.append(Entry(call.group, operation.sequence, what, kinds.get(call.group)))
        elif not (takes_any and operation.name == "recv"):
            found.append(Entry(call.group, operation.sequence, operation.signature or None))
    return found


def _by_root(rank: Rank, kinds: Kinds) -> list[Entry]:
    return [
        Entry(call.group, call.operation.sequence, (call.operation.signature, call.operation.root))
        for call in rank.calls
        if call.operation.root >= 0 and not call.operation.is_pairwise
    ]


def _by_line(rank: Rank, kinds: Kinds) -> list[Entry]:
    return [
        Entry(call.group, call.operation.sequence, (call.line, call.operation.name), kinds.get(call.group))
        for call in rank.calls
        if call.line and not call.operation.is_pairwise
    ]


def _by_operation(rank: Rank, kinds: Kinds) -> list[Entry]:
    return [
        Entry(group.id, group.operation.sequence, group.operation.signature or None, kinds.get(group.id))
        for group in rank.process_groups
        if group.operation is not None and not group.operation.is_pairwise
    ]


def out_of_habit(ranks: Mapping[int, Rank], numbers: Iterable[int]) -> list[int]:
    """Of these ranks, those whose last calls are not in the order of their calls before."""
    histories = {number: [_habit(call) for call in ranks[number].calls] for number in numbers}
    return strays(histories, _LATE_CALLS)


def _habit(call: Call) -> Hashable:
    operation = call.operation
    peer = operation.root if operation.is_pairwise else -1
    return call.line, call.group, operation.name, operation.signature, peer, call.counts
