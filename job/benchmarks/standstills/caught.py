"""Signals that scripts catch, as schedulers send them some time before they end a job: a note in the page is all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from .play import Player

_NAMES = ("SIGTERM", "SIGINT", "SIGHUP")
_LEAST, _MOST = 11.0, 59.0  # seconds that the job had trained on by then; the probe forgets a signal after a minute


def catch(player: Player, source: random.Random, latest: float = float("inf")) -> None:
    """Some ranks had got a signal before the standstill: in a run in which none ends, or while the job trained before.
    `latest` is the last moment for it."""
    states = source.sample(player.ranks, source.randint(1, len(player.ranks)))
    ends = [state.end.time for state in player.ranks if state.end is not None]
    name, at = source.choice(_NAMES), min(ends, default=player.now) - source.uniform(_LEAST, _MOST)
    if not ends and source.random() < 0.5:
        at = source.uniform(0.0, min(player.now, max(latest, 0.0)))
    for state in states:
        time = min(at + source.uniform(0.0, 0.3), player.now)
        if not state.signal and (state.local != "stop" or time < state.local_since):
            state.signal, state.signal_time, player.has_caught = name, time, True
