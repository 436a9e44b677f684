"""All ranks of a node time the same rounds."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from ..page.control import write_control
from ..page.native import NUM_CONTROL_ENTRIES

_MAX_ROUNDS = 65535


def enable(directory: Path, first: Mapping[str, int], num_rounds: int) -> None:
    """Time every operation from now on, in windows of rounds that follow one another.

    Args:
        directory: of the pages.
        first: the sequence numbers that windows begin at, by process group id: the same on all nodes, and beyond what
            any rank has entered. A rank that is past it already joins with a later window. Process groups of this node
            come first: the control page has no room for more than 509, and windows of the rest begin wherever each
            rank is.
        num_rounds: of a window.

    Raises:
        ValueError: an id is not one of a process group.
        OSError: the control page cannot be written.
    """
    entries = {int(identity, 16): sequence for identity, sequence in islice(first.items(), NUM_CONTROL_ENTRIES)}
    write_control(directory, entries, min(max(num_rounds, 1), _MAX_ROUNDS))


def disable(directory: Path) -> None:
    """Time nothing any more. Raises OSError if the control page cannot be written."""
    write_control(directory, {}, 0)
