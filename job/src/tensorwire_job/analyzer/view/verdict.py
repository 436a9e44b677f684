"""A finding and what kind of cause it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ...model import Finding

MAX_SUSPECTS: Final = 5
"""The first few suspects are named."""

_SUSPECTS_WITH_STACKS = 3
_SIDES_WITH_STACKS = 4


@dataclass(slots=True)
class Verdict:
    """A finding, and what kind of cause it has: verdicts of one kind on the same ranks are one finding over time."""

    kind: str
    finding: Finding
    witnesses: list[int] = field(default_factory=list)  # whose stacks tell more, where no rank is suspected

    @property
    def stacks_of(self) -> list[int]:
        """Ranks whose stacks would help: the first suspects, else a rank of each side, else the witnesses."""
        if self.finding.suspects:
            return self.finding.suspects[:_SUSPECTS_WITH_STACKS]
        return [side[0] for side in self.finding.sides[:_SIDES_WITH_STACKS] if side] or self.witnesses
