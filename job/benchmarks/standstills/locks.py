"""The file locks of a run: one holder each, and those that wait for it in the order in which they came."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .acts import Act

STRANGER = -1
"""A process that is no rank, and keeps what it has."""


class Locks:
    """Args:
    order: of locks, the ranks in the order in which they had them; others come after these.
    """

    def __init__(self, order: Mapping[str, Sequence[int]]) -> None:
        self._order = {key: deque(ranks) for key, ranks in order.items()}
        self._holders: dict[str, int] = {}
        self._waiting: dict[str, deque[Act]] = defaultdict(deque)
        self._gone: set[int] = set()

    def seize(self, key: str) -> None:
        """By a stranger, who comes before any rank."""
        self._holders[key] = STRANGER

    def take(self, act: Act, away: Collection[int]) -> Act | None:
        """Wait for a lock; the act that has it now, if one is given it.

        Args:
            away: ranks for whose turn none waits.
        """
        self._waiting[act.call.key].append(act)
        return self._give(act.call.key, act.entered, away)

    def give_back(self, key: str, rank: int, time: float, away: Collection[int]) -> Act | None:
        """The act of the rank that has the lock now, if it was given back and one waits."""
        if self._holders.get(key) != rank:
            return None
        del self._holders[key]
        return self._give(key, time, away)

    def leave(self, rank: int, time: float, away: Collection[int]) -> list[Act]:
        """A rank waits for none any more and gives back all; the acts that have these now."""
        self._gone.add(rank)
        for key, acts in self._waiting.items():
            self._waiting[key] = deque(act for act in acts if act.rank != rank)
        own = [key for key, holder in self._holders.items() if holder == rank]
        given = [self.give_back(key, rank, time, away) for key in own]
        given += [self._give(key, time, away) for key in self._waiting if key not in self._holders]
        return [act for act in given if act is not None]

    def _give(self, key: str, time: float, away: Collection[int]) -> Act | None:
        waiting, order = self._waiting[key], self._order.get(key, deque())
        while order and order[0] in away:
            order.popleft()
        following = next((act for act in waiting if not order or act.rank == order[0]), None)
        found = None
        if key not in self._holders and following is not None:
            if order:
                order.popleft()
            waiting.remove(following)
            self._holders[key], found = following.rank, following
        if key in self._holders:
            for act in waiting:
                # As the probe does, which goes on to tell a holder that has ended.
                if act.holder != self._holders[key] and act.holder not in self._gone:
                    act.holder, act.held_since = self._holders[key], time
        return found
