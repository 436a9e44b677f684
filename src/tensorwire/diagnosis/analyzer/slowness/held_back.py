"""Ranks that were kept from running while the job was slow, as the kernel has it: stopped, throttled, starved."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from ... import words

if TYPE_CHECKING:
    from ..view.job import Job
    from .slow_group import Slow

_THROTTLED = 0.1  # of the time
_STOPPED = 0.25  # of the looks
_STARVED = 0.3  # of the time
_EXPLAINS = 0.5  # of the time that the others wait for the latest


def held_back(job: Job, one: Slow) -> dict[int, str]:
    """Members that were kept from running far more than the others, the most first, each with the fact.

    Their transfers are slow too, so that P looks mixed. Whoever waits for a CPU has to be late as well, and about as
    long as the others wait for it.
    """
    work, now = job.work, job.columns
    throttled = work.shares(job.time, now, lambda places: places.throttled_seconds)
    stopped = work.looks(0.0, job.time, now, lambda places: places.are_stopped)
    starved = work.shares(job.time, now, lambda places: places.wait_seconds)
    starvation = max(_STARVED, _EXPLAINS * min(one.late_by, 1.0))
    for found, least, members, told in (
        (throttled, _THROTTLED, one.mean, "was throttled by its CPU quota for {} of the time"),
        (stopped, _STOPPED, one.mean, "was stopped (state T) in {} of the looks at it"),
        (starved, starvation, one.late, "waited for a CPU for {} of the time: others had it"),
    ):
        ordinary = median(found.get(number, 0.0) for number in one.mean)
        far_above = [n for n in members if found.get(n, 0.0) >= least and found[n] > 2 * ordinary]
        if far_above:
            most_first = sorted(far_above, key=lambda number: (-found[number], number))
            return {n: f"rank {n} {told.format(words.percent(found[n]))}" for n in most_first}
    return {}
