"""A smaller program with the same fault and the same outcome: steps and blocks are left out as long as that goes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from .play import Player
from .standstill import is_over

if TYPE_CHECKING:
    from .programs import Call, Program
    from .standstill import Standstill


def shrink(found: Standstill, outcome: Callable[[Player], object]) -> tuple[Program, Player]:
    """The smallest program that is found, played to its standstill.

    Args:
        outcome: of a standstill; it stays what it is. What has noise in its pages is looked at with fresh ones.
    """
    due = outcome(_play(found.program))
    healthy, faulty = found.healthy, found.program
    parts = sorted({(name, getattr(call, name)) for call in _calls(healthy) for name in ("block", "step")})
    for name, value in (*parts, *parts):
        less = _without(healthy, name, value), _without(faulty, name, value)
        if less[1] != faulty and is_over(_play(less[0])):
            player = _play(less[1])
            if not is_over(player) and outcome(player) == due:
                healthy, faulty = less
    return faulty, _play(faulty)


def _calls(program: Program) -> list[Call]:
    """All that can be left out: groups have to be made, and what a fault adds stays."""
    return [call for own in program.calls for call in own if call.block]


def _without(program: Program, name: str, value: int) -> Program:
    kept = (tuple(call for call in own if not call.block or getattr(call, name) != value) for own in program.calls)
    return replace(program, calls=tuple(kept))


def _play(program: Program) -> Player:
    player = Player(program, random.Random(1))
    player.play()
    return player
