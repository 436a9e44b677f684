"""Stacks of ranks: the order in which a person reads them, and ranks that stand at the same place."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_LAUNCHER = re.compile(r'tensorwire(_job/__main__|/_ground/launcher)\.py[":]')
_LINE = re.compile(r", line \d+|:\d+\)")
_SEPARATOR = re.compile("[:,]")
_DIGIT = re.compile(r"\d")
_MAX_SIDES = 4
_DULL = ("tensorwire_job/rank/probe.py", "<no Python frame>")


def for_reader(stack: str) -> str:
    """The thread that runs the script comes first. The probe's own, threads without Python, and the calls that started
    the script are left out.

    Args:
        stack: as `faulthandler` writes it: threads with an empty line between them, the newest first. Other texts stay
            as they are.
    """
    threads = [thread.strip("\n") for thread in stack.split("\n\n")]
    shown = [thread for thread in threads if "<module>" in thread or not any(dull in thread for dull in _DULL)]
    shown.sort(key=lambda thread: "<module>" not in thread)
    return "\n\n".join(map(_of_script, shown or threads))


def _of_script(thread: str) -> str:
    lines = thread.split("\n")
    end = next((index for index, line in enumerate(lines) if _LAUNCHER.search(line)), len(lines))
    while end < len(lines) and end > 1 and "<frozen runpy>" in lines[end - 1]:
        end -= 1
    return "\n".join(lines[:end]) if end > 1 else thread


def grouped(stacks: Mapping[int, str]) -> list[tuple[list[int], str]]:
    """Ranks that stand at the same place, the most first, with their stack as a reader wants it."""
    found: dict[str, tuple[list[int], str]] = {}
    for rank, stack in stacks.items():
        shown = for_reader(stack)
        key = _ADDRESS.sub("", shown)  # addresses of threads differ between processes that do the same
        found.setdefault(key, ([], shown))[0].append(rank)
    return sorted(found.values(), key=lambda group: -len(group[0]))


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
