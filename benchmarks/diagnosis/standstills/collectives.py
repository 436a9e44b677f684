"""One collective of a group: which ranks get through it, as far as they have come to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .programs import ROOTED

if TYPE_CHECKING:
    from .acts import Act
    from .programs import Call


class Meeting:
    """The acts of one number in a group."""

    __slots__ = ("acts", "has_aborted", "is_even", "members")

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.acts: dict[int, Act] = {}
        self.is_even = True  # all have called the same
        self.has_aborted: set[int] = set()

    def enter(self, act: Act) -> None:
        if self.acts and not _agree(next(iter(self.acts.values())), act):
            self.is_even = False
        self.acts[act.rank] = act

    def settle(self, wildcards: Collection[int]) -> tuple[list[int], list[Act]]:
        """The ranks that are aborted now, and the acts that get through."""
        open_acts = [act for act in self.acts.values() if act.done is None]
        if not open_acts:
            return [], []
        if self.is_even and open_acts[0].call.name not in ROOTED and open_acts[0].call.name != "all_to_all":
            is_whole = all(rank in self.acts or rank in wildcards for rank in self.members)
            return [], open_acts if is_whole else []
        aborted = [rank for rank in self._aborted() if rank not in self.has_aborted]
        self.has_aborted.update(aborted)
        through = [act for act in open_acts if act.rank not in self.has_aborted and self._is_through(act, wildcards)]
        return aborted, through

    def awaited(self, rank: int, lived: Collection[int]) -> set[int]:
        """The ranks whose end this one would notice: the other ends of the transfers that it waits for at present.

        Args:
            lived: ranks that lived when this one came. Some data of one that has come since, and has ended, is there.
        """
        act, size = self.acts[rank], len(self.members)
        own = self.members.index(rank)
        here = {member for member, other in enumerate(self.members) if other in self.acts and other in lived}
        return {self.members[member] for member in _awaited(act.call, own, size, here)}

    def _is_through(self, act: Act, wildcards: Collection[int]) -> bool:
        alike = {rank for rank, other in self.acts.items() if _agree_on_way(other, act)} | set(wildcards)
        call, members = act.call, self.members
        own = members.index(act.rank)
        root = members[call.root] if call.root >= 0 else -1
        if call.name == "broadcast":
            parents, children = _tree(own, call.root, len(members))
            return all(members[each] in alike for each in (*parents, *children))
        if call.name in ("gather", "scatter") and act.rank != root:
            return root in alike
        return all(rank in alike for rank in members)

    def _aborted(self) -> list[int]:
        """Ranks that are sent more than they expect."""
        found = []
        for target, act in self.acts.items():
            if act.done is None and any(self._is_too_much(other, act) for other in self.acts.values()):
                found.append(target)
        return found

    def _is_too_much(self, source: Act, target: Act) -> bool:
        if source is target or not _agree_on_way(source, target):
            return False
        size = len(self.members)
        to, of = self.members.index(target.rank), self.members.index(source.rank)
        if target.call.name == "all_to_all":
            return source.call.counts[to] > target.call.counts[size + of]
        if target.call.name == "broadcast":
            parents, _ = _tree(to, target.call.root, size)
            return parents[-1:] == [of] and source.call.numel > target.call.numel
        if target.call.name == "scatter":
            return source.rank == self.members[target.call.root] and source.call.numel > target.call.numel
        if target.call.name in ("gather", "reduce"):
            return target.rank == self.members[target.call.root] and source.call.numel > target.call.numel
        is_next = to == (of - 1) % size  # rings go down
        return is_next and source.call.numel > target.call.numel


def _awaited(call: Call, own: int, size: int, here: set[int]) -> Collection[int]:
    """By ranks of the group; `here` are those that have come."""
    if call.name == "broadcast":
        parents, children = _tree(own, call.root, size)
        return parents[-1:] + children
    if call.name in ("gather", "scatter"):
        return range(size) if own == call.root else (call.root,)
    if call.name == "monitored_barrier":
        return [next((each for each in range(size) if each not in here), 0)] if own == 0 else (0,)
    if call.name == "all_to_all" or call.name == "new_group":
        return range(size) if call.name == "all_to_all" else ()
    if call.name == "barrier":
        return _in_barrier(own, size, here)
    above, below = (own + 1) % size, (own - 1) % size  # rings go down
    if above not in here:
        return (above,)
    return (below,) if below not in here else (above, below)


def _in_barrier(own: int, size: int, here: set[int]) -> Collection[int]:
    """In each round of a barrier a rank hears of one that is so far before it, and tells one so far behind it."""
    distance = 1
    while distance < size:
        before, behind = (own - distance) % size, (own + distance) % size
        if before not in here:
            return (before,)
        if behind not in here:
            return (behind,)
        here = {each for each in here if (each - distance) % size in here and (each + distance) % size in here}
        if own not in here:
            return (before, behind)
        distance *= 2
    return range(size)


def _agree(one: Act, other: Act) -> bool:
    return _agree_on_way(one, other) and one.call.numel == other.call.numel


def _agree_on_way(one: Act, other: Act) -> bool:
    """Whether their messages meet."""
    return one.call.name == other.call.name and one.call.root == other.call.root


def _tree(own: int, root: int, size: int) -> tuple[list[int], list[int]]:
    """The parents of a member of gloo's binomial tree, down from the root, and its children."""
    virtual = (own - root) % size
    parents = []
    above = virtual
    while above:
        above -= 1 << (above.bit_length() - 1)
        parents.insert(0, (above + root) % size)
    bits = range(virtual.bit_length(), size.bit_length())
    return parents, [(virtual + (1 << bit) + root) % size for bit in bits if virtual + (1 << bit) < size]
