"""What ranks did before the first poll, as far as their pages still know: the ages of what they show."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..model import Observation, ProcessGroup, Rank

_MAX_STEPS = 32
_MARGIN = 0.15  # of the time that is shown: of the good times before
_LEAST_SECONDS = 2.0  # that are worth to be shown


def before(observation: Observation) -> list[Observation]:
    """The job at the times when something changed, the earliest first; nothing where all is of now.

    It says of each rank whether it was in the operation that it is in, had completed what it completed last, lived.
    What it did earlier nobody knows: that it completed operations is what is shown of it.
    """
    ages = sorted({round(age, 1) for rank in observation.ranks.values() for age in _ages(rank)}, reverse=True)
    ages = [age for age in ages if age >= _LEAST_SECONDS]
    if not ages:
        return []
    start = ages[0] * (1.0 + _MARGIN)
    steps = [start, *ages[:: max(1, len(ages) // _MAX_STEPS + 1)]]
    return [_at(observation, age) for age in steps if age <= observation.time]


def _ages(rank: Rank) -> Iterator[float]:
    if rank.process.gone_seconds is not None:
        yield rank.process.gone_seconds
    for group in rank.process_groups:
        yield from (age for age in (group.open_seconds, group.idle_seconds) if age is not None)


def _at(observation: Observation, age: float) -> Observation:
    ranks = {number: _rank(rank, age) for number, rank in observation.ranks.items()}
    return replace(observation, time=observation.time - age, ranks=ranks, edges=[])


def _rank(rank: Rank, age: float) -> Rank:
    process = rank.process
    if process.gone_seconds is not None:
        if process.gone_seconds > age:
            process = replace(process, gone_seconds=process.gone_seconds - age)
        else:
            process = replace(process, life="running", gone_seconds=None)
    return replace(rank, process=process, process_groups=[_group(group, age) for group in rank.process_groups])


def _group(group: ProcessGroup, age: float) -> ProcessGroup:
    """Counts grow up to the last completion, so that a rank is seen to complete operations until then."""
    opened = None if group.open_seconds is None or group.open_seconds < age else group.open_seconds - age
    idle = group.idle_seconds
    completed = group.completed
    if idle is not None and idle < age:
        completed = max(completed - ceil(age - idle), 0)
    return replace(
        group,
        completed=completed,
        enqueued=completed if opened is None else group.enqueued,
        open_seconds=opened,
        idle_seconds=None if idle is None else max(idle - age, 0.0),
        timing=None,
    )
