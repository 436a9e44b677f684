"""Where the histories of ranks part. Ranks of a job run one program, so that what the members of a group call as the
operation of one number is alike; the first number at which it is not tells more than the last call."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

_LATE, _BY_FAR = 6, 3  # calls


class Entry(NamedTuple):
    """A call of one rank."""

    group: Hashable
    number: int
    what: Hashable  # has to be the same for all that make this call; None: not known
    kind: Hashable = None  # groups of one kind make the same calls at the same numbers; None: there are no others
    own: Hashable = None  # has to be the same in the group, though not in its kind; None: not known, or there is none


@dataclass(frozen=True, slots=True)
class Difference:
    """The first number of a group at which its members made different calls."""

    group: Hashable
    number: int
    sides: tuple[tuple[int, ...], ...]  # the members, the most on one side first
    accused: tuple[int, ...]  # whom most of those that made this call speak against; () where no side has most
    is_by_line: bool = False  # instead, the lines that the accused called from speak against them


def first_differences(histories: Mapping[int, Sequence[Entry]]) -> list[Difference]:
    """The differences that no other one comes before, in the history of a rank that has part in both.

    Args:
        histories: of each rank, in the order of its calls.
    """
    calls: dict[tuple[Hashable, int, bool], dict[int, Hashable]] = defaultdict(dict)
    others: dict[tuple[Hashable, int], Counter[Hashable]] = defaultdict(Counter)
    kinds: dict[Hashable, Hashable] = {}
    for rank, history in histories.items():
        for entry in history:
            if entry.what is not None:
                calls[entry.group, entry.number, False][rank] = entry.what
                others[entry.kind, entry.number][entry.what] += 1
                kinds[entry.group] = entry.kind
            if entry.own is not None:
                calls[entry.group, entry.number, True][rank] = entry.own
    differing = sorted((key for key, made in calls.items() if len(set(made.values())) > 1), key=lambda key: key[1:])
    first: dict[Hashable, tuple[int, bool]] = {}
    for group, number, is_own in differing:
        first.setdefault(group, (number, is_own))
    found = []
    for group in _earliest(histories, {group: number for group, (number, _) in first.items()}):
        number, is_own = first[group]
        made = calls[group, number, is_own]
        has_kind = kinds.get(group) and not is_own
        votes = others[kinds[group], number] if has_kind else Counter(made.values())
        found.append(_difference(group, number, made, votes))
    return found


def unequal_exchanges(
    group: Hashable, number: int, members: Sequence[int], counts: Mapping[int, Sequence[int]]
) -> Difference | None:
    """The difference between what members of a group give each other and what these expect; None where there is none.

    One pair cannot tell who of the two is wrong. A member that differs with several others is.

    Args:
        counts: of members whose call is known: what each gives to every member, then what it takes from every one.
    """
    size = len(members)
    pairs = [
        (giver, taker)
        for i, giver in enumerate(members)
        for j, taker in enumerate(members)
        if i != j and giver in counts and taker in counts and counts[giver][j] != counts[taker][size + i]
    ]
    if not pairs:
        return None
    parts = Counter(rank for pair in pairs for rank in set(pair))
    worst, *others = parts.most_common()
    accused = (worst[0],) if worst[1] == len(pairs) > 1 and all(other[1] < worst[1] for other in others) else ()
    return Difference(group, number, tuple((rank,) for rank in sorted(parts)), accused)


def _difference(group: Hashable, number: int, calls: Mapping[int, Hashable], votes: Counter[Hashable]) -> Difference:
    sides: dict[Hashable, list[int]] = defaultdict(list)
    for rank, what in calls.items():
        sides[what].append(rank)
    ordered = sorted((tuple(sorted(side)) for side in sides.values()), key=lambda side: (-len(side), side))
    (usual, most), *_ = votes.most_common(1)
    # None of two is most; nor is one that stands alone.
    has_most = 2 * most > votes.total() and most > 1 and usual in sides
    accused = tuple(sorted(rank for rank, what in calls.items() if what != usual)) if has_most else ()
    return Difference(group, number, tuple(ordered), accused)


def _earliest(histories: Mapping[int, Sequence[Entry]], first: Mapping[Hashable, int]) -> list[Hashable]:
    later: set[Hashable] = set()
    for history in histories.values():
        reached = [entry.group for entry in history if first.get(entry.group) == entry.number]
        later.update(reached[1:])
    return sorted(first.keys() - later, key=str) or sorted(first, key=str)


def last_stray(histories: Mapping[int, Sequence[Hashable]]) -> list[int]:
    """The rank that of late followed a call by one that no rank ever made after it, though it had made that one before:
    a loop makes the same calls again and again. Where several did, the last of them, if it was the last by far.

    Args:
        histories: what each rank called, in order.
    """
    if not histories:
        return []
    times = Counter(pair for calls in histories.values() for pair in pairwise(calls))
    (since, last), *others = sorted((_calls_since_stray(calls, times), rank) for rank, calls in histories.items())
    return [last] if since < _LATE and all(other - since >= _BY_FAR for other, _ in others) else []


def _calls_since_stray(calls: Sequence[Hashable], times: Mapping[tuple[Hashable, Hashable], int]) -> float:
    since, known = math.inf, set[Hashable]()
    for index, (before, call) in enumerate(pairwise(calls), 2):
        if before in known and times[before, call] == 1:
            since = len(calls) - index
        if call != before:  # only then it is known what follows
            known.add(before)
    return since
