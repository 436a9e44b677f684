"""The last calls of a rank in a report: [rank, read at, ids of groups, calls].

Each call is a list of integers: which of these ids, sequence number, number of the description of its operation, line,
and the counts of an all_to_all. Reports have the calls of a rank when it has read them anew, which is rare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..model import MAX_CALLS, MAX_COUNTS, Call, Operation
from .integers import MAX_VALUE

if TYPE_CHECKING:
    from ..model import Rank

_HEAD: Final = 4  # integers of a call before its counts
_SIZE: Final = 10  # integers that a call counts as, without its counts
_MAX_TEXT: Final = 64


def row_of(rank: Rank, read_at: int, number_of: Callable[[Operation], int]) -> list[Any]:
    """The last calls of a rank for a report. `number_of` describes an operation."""
    calls = rank.calls[-MAX_CALLS:]
    ids = list(dict.fromkeys(call.group[:_MAX_TEXT] for call in calls))
    places = {group: place for place, group in enumerate(ids)}
    return [
        rank.rank,
        read_at,
        ids,
        [
            [
                places[call.group[:_MAX_TEXT]],
                call.operation.sequence,
                number_of(call.operation),
                call.line,
                *call.counts[:MAX_COUNTS],
            ]
            for call in calls
        ],
    ]


def check(row: Any, num_works: int) -> None:
    """Raise TypeError, ValueError or IndexError unless this is a row of calls."""
    rank, read_at, ids, calls = row
    if [type(rank), type(read_at), type(ids), type(calls)] != [int, int, list, list]:
        raise TypeError
    if not -1 <= read_at < MAX_VALUE or len(calls) > MAX_CALLS or len(ids) > MAX_CALLS:
        raise ValueError
    if not all(type(group) is str and len(group) <= _MAX_TEXT for group in ids):
        raise TypeError
    for call in calls:
        if type(call) is not list or set(map(type, call)) != {int} or not _HEAD <= len(call) <= _HEAD + MAX_COUNTS:
            raise TypeError
        if min(call) < 0 or max(call) >= MAX_VALUE or call[0] >= len(ids) or call[2] >= num_works:
            raise IndexError


def num_values(calls: Sequence[Call]) -> int:
    """The numbers and texts of calls, for the limits of a node."""
    return sum(_SIZE + len(call.counts) for call in calls)


def calls_of(ids: Sequence[str], rows: Sequence[Sequence[int]], works: Sequence[tuple[Any, ...]]) -> tuple[Call, ...]:
    """The calls of a row that was checked."""
    return tuple(
        Call(ids[group], Operation(sequence, *works[work]), line, tuple(counts))
        for group, sequence, work, line, *counts in rows
    )
