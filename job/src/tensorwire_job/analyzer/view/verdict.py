"""A finding, what kind of cause it has, and the stacks that tell more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ...model import Finding

MAX_SUSPECTS: Final = 5
"""The first few suspects are named."""

_SUSPECTS_WITH_STACKS = 3
_SIDES_WITH_STACKS = 4
_LINE = re.compile(r", line \d+|:\d+\)")
_SEPARATOR = re.compile("[:,]")
_DIGIT = re.compile(r"\d")


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


def sides_of(stacks: Mapping[int, str]) -> list[list[int]]:
    """The few ranks whose scripts stand elsewhere than those of most, and these; [] where no place is that of most.

    The line within the innermost function tells nothing: a loop that polls has several.
    """
    by_place: dict[tuple[str, ...], list[int]] = {}
    for number, stack in sorted(stacks.items()):
        script = next((thread for thread in stack.split("\n\n") if "<module>" in thread), "")
        inner, *outer = list(filter(_is_call, script.splitlines())) or [stack]
        by_place.setdefault((_LINE.sub("", inner), *outer), []).append(number)
    sides = sorted(by_place.values(), key=len)
    return sides if 1 < len(sides) <= _SIDES_WITH_STACKS and 2 * len(sides[-1]) > len(stacks) else []


def _is_call(line: str) -> bool:
    """Whether it has a function with its file and line. Agents send any text: the time is linear in its length."""
    separator = _SEPARATOR.search(line) if line.startswith(" ") else None
    return separator is not None and _DIGIT.search(line, separator.end()) is not None
