"""Process groups that were timed while the job was slow, and how long ranks take between their operations.

In a pipeline all stages wait for whoever takes longer. T of messages alone says little: the stages wait for each other
when all is well, the first and the last for longer than the rest, and longer yet where all of them have more to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..view.groups import Group
    from .rounds import Rounds

ACCOUNTS = 0.5
"""A process group, or a wait elsewhere, explains a loss from this share of the lost time on."""

_LATE = 0.25  # of the way from Tmin to Tmax: ranks below come late


@dataclass(eq=False, slots=True)
class Slow:
    """One process group that was timed while the job was slow."""

    group: Group
    rounds: Rounds
    t_base: float
    seconds: float  # per operation at present
    normal_seconds: float  # per operation in good times; 0 unknown
    is_late: bool  # T is beyond the gate
    is_slow: bool  # its throughput is low
    usual: dict[int, float] = field(default_factory=dict)  # T of the members in good times; empty: not known
    late: list[int] = field(init=False)  # the ranks that wait least, the latest first; none where they are no minority

    def __post_init__(self) -> None:
        mean, bound = self.rounds.mean, self.rounds.t_min + _LATE * (self.rounds.t_max - self.rounds.t_min)
        late = sorted((number for number in mean if mean[number] <= bound), key=lambda number: (mean[number], number))
        self.late = late if 2 * len(late) <= len(mean) else []

    @property
    def p(self) -> float:
        return self.rounds.p(self.t_base)

    @property
    def accounts(self) -> bool:
        """Whether the time that the job loses is lost in here."""
        lost = self.seconds - self.normal_seconds
        return self.is_late or (self.is_slow and self.rounds.t_max - self.t_base >= ACCOUNTS * lost)

    @property
    def late_by(self) -> float:
        """Share of the time that the others wait for the latest."""
        return (self.rounds.t_max - self.rounds.t_min) / self.seconds

    @property
    def lost(self) -> float:
        """Share of the time that is lost in here."""
        return (self.rounds.t_max - self.t_base) / self.seconds

    def p_is_low(self, share: float) -> bool:
        return self.rounds.p_is_valid and self.p <= share


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
