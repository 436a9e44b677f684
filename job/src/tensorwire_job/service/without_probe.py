"""Ranks of this user on this machine that run without the probe."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..page import process

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC: Final = Path("/proc")
_OF_RANKS: Final = {b"RANK", b"WORLD_SIZE", b"MASTER_ADDR"}  # in the environment that launchers give to a rank
_INIT: Final = 1  # what a rank left behind has it as its parent
_LIBRARY: Final = "_tensorwire_probe.so"


@dataclass(frozen=True, slots=True)
class UnseenJob:
    """Ranks that one launcher, such as torchrun, has started without the probe.

    Attributes:
        pid: of the launcher.
        script: the name of the ranks' script or module.
    """

    pid: int
    script: str
    num_ranks: int


def unseen_jobs() -> list[UnseenJob]:
    """Takes milliseconds. A rank that is about to attach the probe is none of these."""
    ranks: dict[tuple[int, str], int] = defaultdict(int)
    for pid in _processes():
        parent = process.parent(pid)
        if not _is_rank(pid) or parent == _INIT or _is_rank(parent):
            continue
        command = _words(pid, "cmdline")
        if not any(b"tensorwire" in word for word in command) and not process.maps_file(pid, _LIBRARY):
            ranks[parent, _script(command)] += 1
    return [UnseenJob(parent, script, number) for (parent, script), number in sorted(ranks.items())]


def _processes() -> Iterator[int]:
    for path in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it may end at any time
            if path.stat().st_uid == os.getuid():
                yield int(path.name)


def _is_rank(pid: int) -> bool:
    return {word.partition(b"=")[0] for word in _words(pid, "environ")} >= _OF_RANKS


def _words(pid: int, name: str) -> list[bytes]:
    try:
        return (_PROC / str(pid) / name).read_bytes().split(b"\0")
    except OSError:
        return []


def _script(command: list[bytes]) -> str:
    word = next((word for word in command[1:] if word and not word.startswith(b"-")), command[0] if command else b"")
    return Path(os.fsdecode(word)).name
