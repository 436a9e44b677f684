"""Process groups that differ in a number, told together: those of a job are often called dp0, dp1 and so on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_NUMBER = re.compile(r"\d+$")


class Family(NamedTuple):
    """Process groups of one kind: all groups of 8 that are called "tp", or tp0, tp1 and so on, which are "tp*"."""

    name: str
    size: int


def without_number(name: str) -> str:
    """ "dp*" for dp0, dp1 and so on; other names as they are."""
    return _NUMBER.sub("*", name)


def families(groups: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Family]:
    """The family of each name and size. One that is numbered and has no like keeps its name."""
    names: dict[tuple[str, int], set[str]] = {}
    known = set(groups)
    for name, size in known:
        names.setdefault((without_number(name), size), set()).add(name)
    return {
        (name, size): Family(without_number(name) if len(names[without_number(name), size]) > 1 else name, size)
        for name, size in known
    }
