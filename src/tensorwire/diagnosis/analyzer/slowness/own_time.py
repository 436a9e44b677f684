"""How long ranks take between their messages, now and in good times: in a pipeline all wait for who takes longer.

T of messages alone says little. The stages of a pipeline wait for each other when all is well, the first and the last
for longer than the rest, and longer yet where all of them have more to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .slow_group import Slow


def waiting_shares(measured: Iterable[Slow]) -> tuple[dict[int, float], dict[int, float]]:
    """The share of the time that ranks wait, now and in good times; of those that send or receive.

    Collectives count as well. In good times they are not timed, so that they seem to take nothing: a rank that waits
    in them seems to take longer by itself then, and less longer now.
    """
    now: dict[int, float] = {}
    before: dict[int, float] = {}
    unknown: set[int] = set()
    for one in measured:
        is_of_messages = bool(one.group.peers)
        for number, mean in one.rounds.mean.items():
            if one.seconds:
                now[number] = now.get(number, 0.0) + mean / one.seconds
            if not is_of_messages:
                continue
            if number in one.usual and one.normal_seconds:
                before[number] = before.get(number, 0.0) + one.usual[number] / one.normal_seconds
            else:
                unknown.add(number)
    known = before.keys() - unknown
    return {n: min(now.get(n, 0.0), 1.0) for n in known}, {n: min(before[n], 1.0) for n in known}


def grown(one: Slow, measured: Iterable[Slow]) -> dict[int, float]:
    """Seconds that ranks take longer by themselves for each message of a pair than in good times."""
    now, before = waiting_shares(measured)
    return {n: one.seconds * (1.0 - now[n]) - one.normal_seconds * (1.0 - before[n]) for n in now}
