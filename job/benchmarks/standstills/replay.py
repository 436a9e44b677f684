"""How ambiguous a standstill is: the ranks of which one alone, had it done what others needed, would explain it.

The calls of all other ranks are played again as they were recorded. One rank is replaced by one that does all that the
others need. A rank that waited goes on from there in a way that is not known, so it may do what others need as well. If
all ranks get through what was recorded, that one rank explains the standstill.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from .play import Player

if TYPE_CHECKING:
    from .programs import Program

_ADDED = ("sleep", "loop", "spin", "stop", "die", "signals")


def explanations(player: Player) -> list[int]:
    """The ranks that alone would explain where the player stands."""
    recorded, waiting = _recorded(player)
    order = _lock_order(player)
    return [rank for rank in range(recorded.world_size) if _explains(recorded, waiting, rank, order)]


def _recorded(player: Player) -> tuple[Program, frozenset[int]]:
    """The calls that ranks have made, and the ranks that did not stop by themselves."""
    calls, waiting = [], set()
    for rank, state in enumerate(player.ranks):
        made = player.program.calls[rank][: state.place]
        calls.append(tuple(call for call in made if call.name not in _ADDED))
        if state.waits_for is not None if state.end is None else state.end.is_of_others:
            waiting.add(rank)
    return replace(player.program, calls=tuple(calls)), frozenset(waiting)


def _lock_order(player: Player) -> dict[str, list[int]]:
    """The ranks that had each lock, in their order."""
    order: dict[str, list[int]] = {}
    had = [act for state in player.ranks for act in state.acts if act.call.name == "lock" and act.done is not None]
    for act in sorted(had, key=lambda act: act.done or 0.0):
        order.setdefault(act.call.key, []).append(act.rank)
    return order


def _explains(recorded: Program, waiting: frozenset[int], rank: int, order: dict[str, list[int]]) -> bool:
    player = Player(recorded, random.Random(0), (rank,), goes_on=waiting, stays=True, lock_order=order)
    player.play()
    return all(
        state.is_alive and state.waits_for is None and state.place >= len(recorded.calls[other])
        for other, state in enumerate(player.ranks)
        if other != rank
    )
