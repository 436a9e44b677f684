"""The making of groups of one name: torch numbers groups as a rank makes them, and gloo connects who come by a name.

A rank publishes its address under its place in its own list. Once all places of that list have one, it takes these and
connects, one after the other: one end of a pair calls the other one, which waits for that call.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Collection

    from .acts import Act
    from .programs import Program


def numbers_of(program: Program, wildcards: Collection[int]) -> list[dict[int, int]]:
    """torch's number of each group that a rank makes, for each rank; wildcards make none."""
    found = []
    for rank, calls in enumerate(program.calls):
        made = [call.group for call in calls if call.name == "new_group"] if rank not in wildcards else []
        found.append({0: 0} | {group: number for number, group in enumerate(made, 1)})
    return found


def tangled(program: Program, numbers: list[dict[int, int]]) -> set[int]:
    """Numbers under which ranks have made lists that differ."""
    lists: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for rank, own in enumerate(numbers):
        for group, number in own.items():
            members = program.groups[group][1]
            if rank in members:
                lists[number].add(members)
    return {number for number, found in lists.items() if len(found) > 1}


class Making:
    """Attributes:
    members: the list of each rank that has come.
    """

    def __init__(self, source: random.Random, wildcards: Collection[int]) -> None:
        self._random, self._wildcards = source, wildcards
        self.members: dict[int, tuple[int, ...]] = {}
        self._acts: dict[int, Act] = {}
        self._addresses: dict[int, float] = {}  # by which it is known who calls whom
        self._published: dict[int, int] = {}  # by place
        self._taken: dict[int, list[int]] = {}  # by rank, whom it took for each place
        self._num_connected: dict[int, int] = {}  # by rank, to how many places

    def enter(self, act: Act, members: tuple[int, ...]) -> list[Act]:
        """The acts that get through."""
        rank = act.rank
        self._acts[rank], self.members[rank], self._addresses[rank] = act, members, self._random.random()
        self._published[members.index(rank)] = rank
        self._taken[rank], self._num_connected[rank] = [], 0
        return self.settle()

    def settle(self) -> list[Act]:
        while any(self._advance(rank) for rank in self._acts):
            pass
        return [act for rank, act in self._acts.items() if self._num_connected[rank] == len(self.members[rank])]

    def peers(self, rank: int) -> list[int]:
        """Whom a rank is connected to by its places; -1 where that one has another at this rank's place."""
        own = self.members[rank].index(rank)
        return [
            peer if peer in self._wildcards or self._taken.get(peer, [])[own : own + 1] == [rank] else -1
            for peer in self._taken[rank]
        ]

    def _advance(self, rank: int) -> bool:
        """Whether the rank gets connected to its next place now."""
        members, place, taken = self.members[rank], self._num_connected[rank], self._taken[rank]
        if place == len(members):
            return False
        if not taken:
            found = [each if each in (rank, *self._wildcards) else self._published.get(index, -1)
                     for index, each in enumerate(members)]  # fmt: skip
            if -1 in found:
                return False
            taken += found
        peer = taken[place]
        if peer != rank and peer not in self._wildcards and self._addresses[peer] < self._addresses[rank]:
            own = members.index(rank)
            if self._taken[peer][own : own + 1] != [rank] or self._num_connected[peer] <= own:
                return False
        self._num_connected[rank] += 1
        return True
