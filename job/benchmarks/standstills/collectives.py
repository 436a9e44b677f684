"""One collective of a group: which ranks get through it, as far as they have come to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .exchange import Exchange
from .transfers import steps

if TYPE_CHECKING:
    from collections.abc import Collection

    from .acts import Act
    from .making import Making

_WHOLE = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "barrier", "init")
"""No rank leaves these before all have come: their transfers are looked at only where calls differ, or a rank ends."""
_WITHOUT_TRANSFERS = ("init",)  # connections are made


@dataclass(slots=True, eq=False)
class Meeting:
    """The acts of one number and one algorithm in a group.

    Attributes:
        wildcards, gone, stopped: ranks that do what others need, and those whose processes have ended, or are stopped.
            The sets grow.
        is_late: see Exchange.
        making: of a group of which the ranks have unlike lists; None where all have one.
    """

    members: tuple[int, ...]
    wildcards: Collection[int]
    gone: Collection[int]
    stopped: Collection[int]
    is_late: bool
    making: Making | None = None
    acts: dict[int, Act] = field(default_factory=dict)
    _exchange: Exchange | None = None
    _has_told: set[int] = field(default_factory=set)

    def enter(self, act: Act) -> None:
        first = next(iter(self.acts.values()), act).call
        is_even = first.numel == act.call.numel and first.name == act.call.name
        if self._exchange is None and (act.call.name not in _WHOLE or not is_even or self.making is not None):
            self._look_at_transfers()
        self.acts[act.rank] = act
        if self._exchange is not None:
            self._join(self._exchange, act)

    def settle(self) -> tuple[list[int], list[Act]]:
        """The ranks that are aborted now, and the acts that get through. Acts that fail are marked as lost."""
        has_transfers = next(iter(self.acts.values())).call.name not in _WITHOUT_TRANSFERS
        if self._exchange is None and has_transfers and any(self._is_out(rank) for rank in self.members):
            self._look_at_transfers()
        if self._exchange is None:
            is_whole = all(rank in self.acts or rank in self.wildcards for rank in self.members)
            return [], [act for act in self.acts.values() if act.done is None] if is_whole else []
        for member, rank in enumerate(self.members):
            if rank in self.gone:
                self._exchange.lose(member)
            if rank in self.stopped:
                self._exchange.freeze(member)
            if rank in self.wildcards:
                self._exchange.set_wildcard(member)
        self._exchange.run()
        aborted = {self.members[each] for each in self._exchange.aborted} - self._has_told
        self._has_told |= aborted
        for member, peer in self._exchange.failed.items():
            self.acts[self.members[member]].lost = self.members[peer]
        through = [self.acts[self.members[each]] for each in self._exchange.through]
        return sorted(aborted), [act for act in through if act.done is None]

    def _is_out(self, rank: int) -> bool:
        return rank in self.gone or rank in self.stopped

    def _look_at_transfers(self) -> None:
        """Members that have come have done what they could before."""
        self._exchange = Exchange(is_late=self.is_late)
        for act in self.acts.values():
            self._join(self._exchange, act)
        self._exchange.run()

    def _join(self, exchange: Exchange, act: Act) -> None:
        if self.making is None:
            own, size = self.members.index(act.rank), len(self.members)
            exchange.enter(own, steps(act.call, own, size))
            return
        members, peers = self.making.members[act.rank], self.making.peers(act.rank)
        places = [-1 if peer < 0 else self.members.index(peer) for peer in peers]
        made = steps(act.call, members.index(act.rank), len(members))
        own = self.members.index(act.rank)
        exchange.enter(own, [each if each.peer < 0 else each._replace(peer=places[each.peer]) for each in made])
