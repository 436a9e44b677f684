"""The stacks of a suspect's threads in the order in which they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_LAUNCHER = re.compile(r'tensorwire(_job/__main__|/_ground/launcher)\.py[":]')
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
