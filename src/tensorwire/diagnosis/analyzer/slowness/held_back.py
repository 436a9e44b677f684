"""Ranks that were kept from running while the job was slow, as the kernel has it: stopped, throttled, starved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ... import words

if TYPE_CHECKING:
    from ...columns import Floats, Places, RankColumns
    from ..view.job import Job
    from .slow_group import Slow

    Poll = tuple[float, RankColumns]  # when, and all ranks then

_THROTTLED = 0.1  # of the time
_STOPPED = 0.25  # of the polls
_STARVED = 0.3  # of the time
_EXPLAINS = 0.5  # of the time that the others wait for the latest


def held_back(job: Job, one: Slow, history: Sequence[Poll]) -> dict[int, str]:
    """Members that were kept from running, each with the fact. Their transfers are slow too, so that P looks mixed."""
    return _throttled(job, one, history) or _stopped(one, history) or _starved(job, one, history)


def shares(job: Job, one: Slow, history: Sequence[Poll], seconds: Callable[[Places], Floats]) -> dict[int, float]:
    """By how much a counter of each member grew, per second. One that adds up threads may grow faster than time."""
    start, before = history[0]
    elapsed = job.time - start
    if elapsed <= 0:
        return {}
    now, then = seconds(job.columns.places).tolist(), seconds(before.places).tolist()
    places, places_then = job.columns.place_of, before.place_of
    return {
        number: (now[places[number]] - then[places_then[number]]) / elapsed
        for number in one.rounds.mean
        if number in places and number in places_then
    }


def _stopped(one: Slow, history: Sequence[Poll]) -> dict[int, str]:
    """Members that were found stopped again and again."""
    stopped = Counter(number for _, ranks in history for number in ranks.numbers[ranks.places.are_stopped].tolist())
    return {
        number: f"the process of rank {number} was stopped (state T) in {count} of {len(history)} polls"
        for number in one.rounds.mean
        if (count := stopped[number]) >= max(2, _STOPPED * len(history))
    }


def _throttled(job: Job, one: Slow, history: Sequence[Poll]) -> dict[int, str]:
    """Members that their cgroup's quota slowed far more than the others."""
    found = shares(job, one, history, lambda places: places.throttled_seconds)
    limited = _far_above_others(found, _THROTTLED)
    return {n: f"rank {n} was throttled by its CPU quota for {words.percent(found[n])} of the time" for n in limited}


def _starved(job: Job, one: Slow, history: Sequence[Poll]) -> dict[int, str]:
    """Late members that waited for a CPU far more than the others, and about as long as the others for them."""
    found = shares(job, one, history, lambda places: places.wait_seconds)
    least = max(_STARVED, _EXPLAINS * min(one.late_by, 1.0))
    limited = [number for number in _far_above_others(found, least) if number in one.late]
    return {n: f"rank {n} waited for a CPU for {words.percent(found[n])} of the time: others had it" for n in limited}


def _far_above_others(found: dict[int, float], least: float) -> list[int]:
    """The members with at least so much and far more than the ordinary, the most first."""
    ordinary = median(found.values()) if found else 0.0
    limited = [number for number, share in found.items() if share >= least and share > 2 * ordinary]
    return sorted(limited, key=lambda number: (-found[number], number))
