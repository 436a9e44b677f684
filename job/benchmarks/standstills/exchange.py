"""The transfers of one collective on their way: how far each member gets, and which end it would notice."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .transfers import Step


class Exchange:
    """Members are told by their ranks in the group.

    Attributes:
        through: members that have done all their steps.
        aborted: members that were sent more than they expect.
        failed: members that exchange data with one that is gone; and one such.
    """

    def __init__(self, *, is_late: bool) -> None:
        """Args:
        is_late: a process that aborts does so late, so that others take what it had posted.
        """
        self._is_late = is_late
        self.through: set[int] = set()
        self.aborted: set[int] = set()
        self.failed: dict[int, int] = {}
        self._steps: dict[int, deque[Step]] = {}
        self._gone: set[int] = set()
        self._frozen: set[int] = set()
        self._wildcards: set[int] = set()
        self._posted: dict[tuple[str, int, int], deque[tuple[str, int]]] = {}  # by verb and ends: buffer and bytes
        self._done: Counter[tuple[int, str, str]] = Counter()  # by member, verb and buffer

    def enter(self, member: int, steps: Iterable[Step]) -> None:
        self._steps[member] = deque(steps)

    def lose(self, member: int) -> None:
        """Its process ended. What it has posted is never taken."""
        if member in self._gone:
            return
        self._gone.add(member)
        for (_, own, _), posted in self._posted.items():
            if own == member:
                posted.clear()

    def freeze(self, member: int) -> None:
        """Its process is stopped. What it has posted is taken no more."""
        self._frozen.add(member)

    def set_wildcard(self, member: int) -> None:
        """It posts all that the others need."""
        if member in self._wildcards:
            return
        self._wildcards.add(member)
        for (verb, own, peer), posted in self._posted.items():
            while peer == member and posted:
                self._done[own, verb, posted.popleft()[0]] += 1

    def run(self) -> None:
        """Until no rank gets further."""
        moves = True
        while moves:
            moves = False
            for member in self._steps:
                while self._advance(member):
                    moves = True

    def _advance(self, member: int) -> bool:
        """Whether the member does its next step now."""
        steps = self._steps[member]
        if any(member in each for each in (self._gone, self._frozen, self.aborted, self.failed, self.through)):
            return False
        if not steps:
            self.through.add(member)
            return True
        step = steps[0]
        if step.verb.startswith("wait "):
            key = member, step.verb.removeprefix("wait "), step.buffer
            if not self._done[key]:
                self._notice(member, step.buffer)
                return False
            self._done[key] -= 1
        elif step.peer in self._gone:
            self.failed[member] = step.peer
            return False
        else:
            self._post(member, step)
        steps.popleft()
        return True

    def _notice(self, member: int, buffer: str) -> None:
        for (_, own, peer), posted in self._posted.items():
            if own == member and peer in self._gone and any(each == buffer for each, _ in posted):
                self.failed[member] = peer

    def _post(self, member: int, step: Step) -> None:
        other = "recv" if step.verb == "send" else "send"
        waiting = self._posted.get((other, step.peer, member))
        if step.peer in self._wildcards:
            self._done[member, step.verb, step.buffer] += 1
        elif waiting and step.peer not in self._frozen and (self._is_late or step.peer not in self.aborted):
            buffer, nbytes = waiting.popleft()
            sent, received = (step.nbytes, nbytes) if step.verb == "send" else (nbytes, step.nbytes)
            target = step.peer if step.verb == "send" else member
            if sent > received:
                self.aborted.add(target)
            for each, verb, its in ((member, step.verb, step.buffer), (step.peer, other, buffer)):
                self._done[each, verb, its] += 1
        else:
            self._posted.setdefault((step.verb, member, step.peer), deque()).append((step.buffer, step.nbytes))
