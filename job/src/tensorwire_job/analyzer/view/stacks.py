"""Where ranks stand, by their stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping

_MAX_SIDES = 4
_LINE = re.compile(r", line \d+|:\d+\)")
_SEPARATOR = re.compile("[:,]")
_DIGIT = re.compile(r"\d")


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
    return sides if 1 < len(sides) <= _MAX_SIDES and 2 * len(sides[-1]) > len(stacks) else []


def _is_call(line: str) -> bool:
    """Whether it has a function with its file and line. Agents send any text: the time is linear in its length."""
    separator = _SEPARATOR.search(line) if line.startswith(" ") else None
    return separator is not None and _DIGIT.search(line, separator.end()) is not None
