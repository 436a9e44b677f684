"""Waits of ranks: in operations of groups, at ends of messages, in calls that no group counts."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ... import words

if TYPE_CHECKING:
    from ...model import Operation
    from .groups import Group

IN_INIT = "init_process_group"
# Their inputs may differ in size between ranks.
_UNEVEN = frozenset({"all_to_all", "all_to_all_single", "all_gather", "gather", "scatter"})


@dataclass(eq=False)
class Wait:
    """A wait of ranks: in an operation of a group, at one or both ends of a message, or in a call no group counts."""

    group: Group | None
    call: str  # the call, if there is no group
    sequence: int
    inside: list[int]
    blocked: list[int]  # these, and those that wait in later operations of the group
    missing: list[int]  # ranks in view that have not come to it
    unseen: list[int]  # ranks that are not in view, and may have to come
    seconds: float  # that the longest of the blocked ranks has waited
    is_pairwise: bool = False
    is_any: bool = False  # one of the missing is enough
    vertex: int = 0  # in the graph: what is waited for if no rank is missing
    is_complete: bool = True  # the members are known
    sides: list[list[int]] = field(default_factory=list)  # of those inside, by what they called; none where all agree
    is_fresh: bool = True  # it rests on no page that is old
    pid: int = 0  # of the process that holds the lock, if it is a wait for one; 0: it is for none

    @cached_property
    def calls(self) -> list[tuple[Operation, list[int]]]:
        """The calls of the ranks inside, as far as they are known, each with the ranks that made it."""
        found = self.group.calls(self.inside) if self.group is not None else []
        return [(operation, ranks) for operation, ranks in found if operation.sequence == self.sequence]

    @property
    def of_group(self) -> Group:
        """The group, where one counts the operation."""
        assert self.group is not None
        return self.group

    @property
    def members(self) -> list[int]:
        """The ranks that take part in it, as far as they are in view, where a group counts it."""
        return self.inside if self.is_pairwise else list(self.of_group.members)

    @property
    def lacked(self) -> Collection[int]:
        """All that some rank in it waits for."""
        if self.sides:
            return {*self.missing, *self.inside, self.vertex}
        return self.missing or [self.vertex]

    @property
    def title(self) -> str:
        """ "all_reduce #121 of default_pg"."""
        if self.pid:
            whose = f"{words.ranks(self.missing)} (pid {self.pid})" if self.missing else f"pid {self.pid}"
            return f"the file lock of {whose}"
        if self.group is None:
            return self.call
        named = next((operation for operation, _ in self.calls if operation.name), None)
        return words.numbered(named, self.sequence, self.group.title)

    @property
    def prominence(self) -> tuple[int, float, str, str, bool, int, bool]:
        """The numbers of ranks and their order have no part in it: they must not change what is found."""
        name, identity = (self.group.title, self.group.id) if self.group else (self.call, "")
        return len(self.blocked), self.seconds, name, identity, not self.is_pairwise, -self.sequence, self.is_fresh

    def told(self) -> str:
        """For the evidence: "ranks 0-1 wait in all_reduce #36 of world for rank 2, the longest for 5 min"."""
        for_whom = f" for {words.ranks(self.missing)}" if self.missing else ""
        what = f"for {self.title}" if self.pid else f"in {self.title}{for_whom}"
        return f"{words.does(self.inside, 'waits', 'wait')} {what}, the longest for {words.seconds(self.seconds)}"

    def lacked_by(self, number: int) -> list[int]:
        """The ranks that this rank waits for."""
        own = next((side for side in self.sides if number in side), None)
        others = [] if own is None else [other for side in self.sides if side is not own for other in side]
        return sorted({*self.missing, *others})


def most_prominent(waits: Collection[Wait]) -> Wait:
    """The one that a verdict on all of these is about."""
    return max(waits, key=lambda wait: wait.prominence)


def sides(calls: Iterable[tuple[Operation, list[int]]]) -> list[list[int]]:
    """The ranks by what they called, the largest side first; none where all agree.

    Roots are compared where they are known; a rank whose root is not known is taken to agree with most, or left out
    where no root has most.
    """
    known = [(operation, ranks) for operation, ranks in calls if operation.signature or operation.name]
    hashed = all(operation.signature for operation, _ in known)
    by_call: dict[Hashable, dict[int, list[int]]] = {}
    for operation, ranks in known:
        numel = -1 if operation.name in _UNEVEN else operation.numel
        call: Hashable = operation.signature if hashed else (operation.name, operation.dtype, numel)
        by_call.setdefault(call, {}).setdefault(operation.root, []).extend(ranks)
    found = []
    for by_root in by_call.values():
        unknown = by_root.pop(-1, [])
        of_root = sorted(by_root.values(), key=len, reverse=True) or [[]]
        if len(of_root) == 1 or len(of_root[0]) > len(of_root[1]):
            of_root[0] += unknown
        found += of_root
    ordered = sorted((sorted(side) for side in found), key=lambda side: (-len(side), side))
    return ordered if len(ordered) > 1 else []
