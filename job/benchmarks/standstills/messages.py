"""Messages on their way: sends that are not received yet, and receives that nothing was sent to."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Collection

    from .acts import Act


class Messages:
    """Messages from one rank to another meet in the order of their calls."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self._sends: dict[tuple[int, int], deque[Act]] = defaultdict(deque)
        self._receives: dict[tuple[int, int], deque[Act]] = defaultdict(deque)
        self._from_any: dict[int, deque[Act]] = defaultdict(deque)

    def post(self, act: Act, wildcards: Collection[int]) -> list[Act]:
        """The acts that are complete by this one: none, this one, or both ends of a message."""
        rank, peer, name = act.rank, act.call.peer, act.call.name
        if name == "recv_any":
            sources = [source for (source, target), sent in self._sends.items() if target == rank and sent]
            pending = self._sends[self._random.choice(sorted(sources)), rank] if sources else None
            own = self._from_any[rank]
        elif name in ("send", "isend"):
            pending, own = self._receives[rank, peer] or self._from_any[peer], self._sends[rank, peer]
        else:
            pending, own = self._sends[peer, rank], self._receives[peer, rank]
        if pending:
            return [act, pending.popleft()]
        if peer in wildcards:
            return [act]
        own.append(act)
        return []

    def take(self, wildcard: int) -> list[Act]:
        """All that wait for a rank that does all that they need."""
        pending = [acts for (_, target), acts in self._sends.items() if target == wildcard]
        pending += [acts for (source, _), acts in self._receives.items() if source == wildcard]
        found = [act for acts in pending for act in acts]
        for acts in pending:
            acts.clear()
        return found

    def lose(self, rank: int) -> None:
        """What a rank has posted whose process is about to end is never taken."""
        for (source, _), pending in self._sends.items():
            if source == rank:
                pending.clear()
        for (_, target), pending in self._receives.items():
            if target == rank:
                pending.clear()
        self._from_any[rank].clear()

    def take_from_any(self) -> Act | None:
        """A receive from any source to which nothing was sent."""
        pending = next((acts for acts in self._from_any.values() if acts), None)
        return pending.popleft() if pending else None
