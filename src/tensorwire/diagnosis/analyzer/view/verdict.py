"""How findings are made: the same way wherever they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...model import Finding
from .confidence import confidence_of

if TYPE_CHECKING:
    from ...model import Code, Level
    from .confidence import Basis

MAX_SUSPECTS = 5

_SUSPECTS_WITH_STACKS = 3
_SIDES_WITH_STACKS = 4


@dataclass(slots=True)
class Verdict:
    """A finding, and what kind of cause it has: verdicts of one kind on the same ranks are one finding over time."""

    kind: str
    finding: Finding
    witnesses: list[int] = field(default_factory=list)  # whose stacks tell more, where nobody is suspected

    @property
    def stacks_of(self) -> list[int]:
        """Ranks whose stacks would help: the first suspects, else a rank of each side, else the witnesses."""
        if self.finding.suspects:
            return self.finding.suspects[:_SUSPECTS_WITH_STACKS]
        return [side[0] for side in self.finding.sides[:_SIDES_WITH_STACKS] if side] or self.witnesses


def make_finding(
    code: Code,
    time: float,
    process_group: str,
    suspects: Sequence[int],
    summary: str,
    evidence: list[str],
    basis: Basis,
    *,
    victims: int = 0,
    is_incomplete: bool = False,
    level: Level = "finding",
    sides: Sequence[list[int]] = (),
    since: float | None = None,
) -> Finding:
    """It names the first few suspects. `is_incomplete`: anything that it depends on is out of view."""
    named = list(suspects[:MAX_SUSPECTS])
    confidence = confidence_of(code, basis, names_ranks=bool(named), has_sides=bool(sides), is_incomplete=is_incomplete)
    return Finding(
        code,
        level,
        time,
        named,
        list(sides),
        process_group,
        summary,
        evidence,
        confidence,
        victims=victims,
        since=since,
    )
