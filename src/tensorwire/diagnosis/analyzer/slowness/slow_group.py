"""A process group that was timed while the job was slow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..view.groups import Group
    from .rounds import Rounds

ACCOUNTS = 0.5
"""Of the time lost: from here on a process group, or a wait elsewhere, explains it."""

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
