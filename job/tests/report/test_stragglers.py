"""Ranks that come late by a little: a ranking from polls alone, and none where all are alike."""

from __future__ import annotations

import random

import pytest

from job.tests.support.observations import WORLD, member, observed, rank
from tensorwire_job.report.stragglers import Stragglers


def polled(late: dict[int, float], *, polls: int = 300, goes_on: bool = True) -> Stragglers:
    """Ranks wait 40 % of the time, but for those that come late by so much of it."""
    chance, stragglers = random.Random(7), Stragglers()
    for time in range(polls):
        ranks = []
        for n in range(WORLD):
            waits = 0.01 if chance.random() < 0.4 - late.get(n, 0.0) else None
            ranks.append(rank(n, member(10 * time + 2 if goes_on else 2, waits=waits)))
        stragglers.add(observed(float(time), ranks))
    return stragglers


@pytest.mark.parametrize("culprit", range(WORLD))
def test_a_rank_that_is_late_by_a_fifth_is_ranked_first(culprit: int) -> None:
    first = polled({culprit: 0.2}).ranking()[0]
    assert first.rank == culprit
    assert 0.1 <= first.late <= 0.3


def test_nobody_is_late_where_all_are_alike_or_little_is_known() -> None:
    assert polled({}).ranking() == []
    assert polled({1: 0.4}, polls=30).ranking() == [], "a few polls tell nothing"
    assert polled({1: 0.4}, goes_on=False).ranking() == [], "ranks that complete nothing are not compared"


def test_the_latest_come_first() -> None:
    assert [one.rank for one in polled({0: 0.25, 1: 0.4}).ranking()][:1] == [1]
