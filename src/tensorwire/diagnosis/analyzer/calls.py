"""What the histories of ranks say: the first calls that differ, and whom most of the others speak against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from .. import words
from ..numbered import without_number
from .graph import Entry, first_differences, unequal_exchanges

if TYPE_CHECKING:
    from ..model import Rank
    from .graph import Difference
    from .job import Job

Kinds = Mapping[str, Hashable]
"""Of groups by id: those of one kind make the same calls."""

_MAX_RANKS = 4096  # whose histories are compared
_MAX_FACTS = 3


def compare(job: Job) -> list[Difference]:
    """The first differences: of what was called, of the lines that called it, else of what ranks are in now."""
    kinds = {group.id: (without_number(group.name), group.size) for group in job.groups.values() if group.name}
    ranks = [job.ranks[number] for number in list(job.ranks)[:_MAX_RANKS]]
    for entries in (_by_call, _by_root, _by_line, _by_operation):
        found = first_differences({rank.rank: entries(rank, kinds) for rank in ranks})
        if found:
            return found
        if entries is _by_root and (found := _exchanges(job, ranks)):
            return found
    return []


def _exchanges(job: Job, ranks: Sequence[Rank]) -> list[Difference]:
    """The first all_to_all of each group whose counts do not fit each other."""
    at: dict[tuple[str, int], dict[int, Sequence[int]]] = defaultdict(dict)
    for rank in ranks:
        for call in rank.calls:
            if call.counts:
                at[call.group, call.operation.sequence][rank.rank] = call.counts
    found: dict[str, Difference] = {}
    for (group_id, number), counts in sorted(at.items()):
        group = job.groups.get(group_id)
        members = job.groups.ranks_of(group) if group is not None and group_id not in found else ()
        if members and all(len(each) == 2 * len(members) for each in counts.values()):
            difference = unequal_exchanges(group_id, number, members, counts)
            if difference is not None:
                found[group_id] = difference
    return list(found.values())


def _by_call(rank: Rank, kinds: Kinds) -> list[Entry]:
    return [
        Entry(call.group, call.operation.sequence, call.operation.signature or None, kinds.get(call.group))
        for call in rank.calls
        if not (call.operation.is_pairwise and call.operation.root < 0)  # from any source: it has no other end
    ]


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


def accused(job: Job) -> list[int]:
    """Ranks that the first difference speaks against."""
    return sorted({number for difference in job.differences for number in difference.accused})


def parted(job: Job) -> list[str]:
    """Where histories part, as facts for the evidence."""
    facts = []
    for difference in job.differences[:_MAX_FACTS]:
        calls = []
        for side in difference.sides[:2]:
            call = next(
                (
                    each.operation
                    for each in job.ranks[side[0]].calls
                    if (each.group, each.operation.sequence) == (difference.group, difference.number)
                ),
                None,
            )
            calls.append(f"{words.ranks(side)} called {words.call(call)}" if call else words.ranks(side))
        group = job.groups.get(str(difference.group))
        title = group.title if group is not None else str(difference.group)
        facts.append(f"#{difference.number} of {title} is the first call that differs: {', '.join(calls)}")
    return facts
