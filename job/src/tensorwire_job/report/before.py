"""The past of ranks before the first poll, as far as the ages in their pages tell it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..model import Observation, ProcessGroup, Rank

_Waits = dict[tuple[int, str], float]
"""An age, by rank and process group."""

_MAX_STEPS = 32
_MARGIN = 0.15  # good times that are shown before the first change, as a share of the time since
_LEAST_SECONDS = 2.0  # that are worth to be shown


def before(observation: Observation) -> list[Observation]:
    """The job at the times of its changes, the earliest first; none where nothing changed before now.

    Each rank lives, has completed its last operation, or is in its present one, if it was so at that time. Earlier
    operations are not known: until then a rank is shown as one that completes operations.
    """
    failed = _failed_waits(observation)
    found = {age for rank in observation.ranks.values() for age in _ages(rank)}.union(failed.values())
    # A tenth of a second is enough, and is rounded to the earlier time, at which the change has not come yet.
    ages = sorted({ceil(age * 10) / 10 for age in found}, reverse=True)
    ages = [age for age in ages if age >= _LEAST_SECONDS]
    if not ages:
        return []
    start = ages[0] * (1.0 + _MARGIN)
    steps = [start, *ages[:: max(1, len(ages) // _MAX_STEPS + 1)]]
    return [_at(observation, age, failed) for age in steps if age <= observation.time]


def _failed_waits(observation: Observation) -> _Waits:
    """How long ago each rank that ended, or is about to, entered the operation that failed with the job.

    torch counts such an operation as completed. It was open as long as the ranks that lacked in it were in none.
    """
    outside: dict[str, list[tuple[int, float]]] = {}
    for rank in observation.ranks.values():
        for group in rank.process_groups:
            if group.open_seconds is None and group.idle_seconds is not None and not group.is_pairwise:
                outside.setdefault(group.id, []).append((group.enqueued, group.idle_seconds))
    waits: _Waits = {}
    for rank in observation.ranks.values():
        if rank.process.is_alive and not rank.process.exit_reason and not rank.process.signal:
            continue
        for group in rank.process_groups:
            if group.open_seconds is None and group.idle_seconds is not None:
                ages = [age for entered, age in outside.get(group.id, ()) if entered < group.completed]
                ages = [age for age in ages if age > group.idle_seconds]
                if ages:
                    waits[rank.rank, group.id] = min(ages)
    return waits


def _ages(rank: Rank) -> Iterator[float]:
    if rank.process.gone_seconds is not None:
        yield rank.process.gone_seconds
    for group in rank.process_groups:
        yield from (age for age in (group.open_seconds, group.idle_seconds) if age is not None)


def _at(observation: Observation, age: float, failed: _Waits) -> Observation:
    ranks = {number: _rank(rank, age, failed) for number, rank in observation.ranks.items()}
    return replace(observation, time=observation.time - age, ranks=ranks, edges=[])


def _rank(rank: Rank, age: float, failed: _Waits) -> Rank:
    process = rank.process
    if process.gone_seconds is not None:
        if process.gone_seconds > age:
            process = replace(process, gone_seconds=process.gone_seconds - age)
        else:
            process = replace(process, life="running", gone_seconds=None)
    groups = [_group(_reopened(group, failed.get((rank.rank, group.id)), age), age) for group in rank.process_groups]
    return replace(rank, process=process, process_groups=groups)


def _reopened(group: ProcessGroup, entered: float | None, age: float) -> ProcessGroup:
    """The group before its last operation failed, which is open then."""
    if entered is None or group.idle_seconds is None or group.idle_seconds > age:
        return group
    return replace(group, completed=group.completed - 1, open_seconds=entered, idle_seconds=entered)


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
