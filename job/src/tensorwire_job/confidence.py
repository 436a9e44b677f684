"""How far a finding can be trusted: the one place that decides it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from .model import Code, Confidence

_LEVELS = tuple(Confidence)


class Basis(IntEnum):
    """The ground for the choice of suspects. The larger, the weaker."""

    STATE = 0
    """Something that was read as it is: which ranks are in which operation, what each called, a stopped process, a
    retransmission timer that has backed off, throttling, times of the same rounds, the last words of a process."""

    COMPARISON = 1
    """Counters or times of ranks, compared: these ranks stand out, and another cause can make them stand out too."""

    REMAINDER = 2
    """Ranks that are left when others are excluded, or one of several that look alike."""


def confidence_of(
    code: Code, basis: Basis, suspects: Sequence[int], sides: Sequence[Sequence[int]] = (), *, is_incomplete: bool
) -> Confidence:
    """The rules; job/docs/findings.md has them too.

    A finding that names no rank, or no cause, has low confidence, and medium at most if it has sides. Any other has
    high confidence if it rests on states, medium on a comparison, low on a remainder. It is one level lower if
    anything that it depends on is out of view.

    Args:
        sides: ranks that disagree.
        is_incomplete: members of the group, nodes or times are out of view.
    """
    if code == "TW-UNKNOWN" or not (suspects or sides):
        return Confidence.LOW
    if not suspects:
        basis = max(basis, Basis.COMPARISON)
    return _LEVELS[min(basis + is_incomplete, len(_LEVELS) - 1)]
