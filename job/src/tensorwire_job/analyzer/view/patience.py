"""How long ranks may wait or work until something is amiss, where the hang gate alone does not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .groups import Group
    from .job import Job

LONG = 6.0
"""Hang gates that ranks may take for what is nothing wrong in itself, as long as nothing else speaks against it."""

_BLOCKED_SHARE = 0.1  # of the hang gate
_RECENT_SHARE = 0.5  # of the hang gate; on the recordings 0.3 leads to the same verdicts
_USUAL = 20.0  # a wait of so many times the usual time between operations is none of a job that is well
_ENOUGH = 10  # operations of a group, from which the time between them is known


def blocked(job: Job) -> float:
    """Seconds from which an operation that is open blocks its rank; a younger one may be part of normal work."""
    return _BLOCKED_SHARE * job.thresholds.hang_seconds


def recent(job: Job) -> float:
    """Seconds within which things happened that go on: operations are completed, bytes move.

    Ranks of a job that is well compute for some time in between, and at the end of a large transfer the last one waits
    with the rest at rest; a rank that is stuck since the hang began has done nothing for the whole gate.
    """
    return _RECENT_SHARE * job.thresholds.hang_seconds


def is_unusual(job: Job, group: Group, seconds: float) -> bool:
    """Whether its group used to complete operations so often that a wait of this length is none of a job that is well.

    It is taken for granted where it is not known for how long the group's ranks had run, but not where the group has
    completed few operations.
    """
    rate = float(np.fmax.reduce(group.baseline_rates, initial=0.0))
    if not rate:  # of a job that ran too briefly to know, from its set-up on
        elapsed = float(np.fmax.reduce(job.columns.setups[1][group.places], initial=0.0)) - seconds
        if elapsed <= 0:
            return True
        completed = int(group.completed.max())
        rate = completed / elapsed if completed >= _ENOUGH else 0.0
    return rate * seconds >= _USUAL
