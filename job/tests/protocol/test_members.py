"""Members of process groups in few numbers."""

from __future__ import annotations

import math
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from job.tests.support.observations import member, observed, rank
from tensorwire_job.analyzer.view.groups import Groups
from tensorwire_job.columns import RankColumns
from tensorwire_job.members import MAX_DIMENSIONS, GridRanks, members_of, numbers_of, ranks_of


@pytest.mark.parametrize(
    ("grid", "ranks"),
    [
        ((0, ((4, 1),)), [0, 1, 2, 3]),
        ((5, ((3, 8),)), [5, 13, 21]),
        ((1, ((2, 4), (3, 1))), [1, 2, 3, 5, 6, 7]),
        ((0, ((2, 100), (2, 10), (2, 1))), [0, 1, 10, 11, 100, 101, 110, 111]),
        ((7, ((1, 1), (1, 1), (1, 1))), [7]),
        ((0, ((0, 1),)), []),
        ((0, ((4, 0),)), []),
        ((1 << 19, ((2, 1 << 19),)), []),
        ((0, ((1 << 15, 1), (1 << 15, 1))), []),
        ((0, ((2, 3), (3, 2))), []),
        ((0, ((2, 1), (2, 2))), [0, 2, 1, 3]),
    ],
)
def test_ranks_of_a_grid(grid: Any, ranks: list[int]) -> None:
    assert list(ranks_of(grid)) == ranks


def test_large_grids_take_no_memory() -> None:
    """Hundreds of them would take gigabytes, from wherever they come."""
    tracemalloc.start()
    try:
        kept = [members_of([first, 1 << 10, 1 << 9, 1 << 8, 2]) for first in range(100)]
        assert [len(ranks) for ranks in kept] == [1 << 18] * 100
        assert tracemalloc.get_traced_memory()[1] < 100 * 1000
    finally:
        tracemalloc.stop()


def test_ranks_of_a_grid_are_a_sequence() -> None:
    ranks = ranks_of((3, ((2, 100), (1, 7), (3, 10))))
    expected = (3, 13, 23, 103, 113, 123)
    assert (len(ranks), tuple(ranks), ranks[1:4], ranks[-1]) == (6, expected, expected[1:4], 123)
    assert [ranks[index] for index in range(6)] == list(expected)
    assert ranks == expected
    assert ranks == ranks_of((3, ((2, 100), (3, 10))))
    assert ranks != ranks_of((3, ((2, 100), (3, 11))))
    assert 113 in ranks
    assert 112 not in ranks
    with pytest.raises(IndexError):
        ranks[6]


@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20)), min_size=1, max_size=MAX_DIMENSIONS),
)
def test_a_grid_holds_its_ranks_and_no_other(first: int, dimensions: list[tuple[int, int]]) -> None:
    ranks = ranks_of((first, tuple(dimensions)))
    assert [number for number in range(-10, 200) if number in ranks] == sorted(ranks)


def test_a_claim_of_many_members_costs_no_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = ranks_of((0, ((1 << 10, 1 << 10), (1 << 9, 1))))
    group = member(1, waits=9.0, size=len(claimed), members=claimed)
    observation = observed(50.0, [rank(1, group), rank(2), rank(600)], world=1 << 20)
    monkeypatch.setattr(GridRanks, "__iter__", lambda _: pytest.fail("it walks through the ranks"))
    groups = Groups(RankColumns.of(observation.ranks), observation.world_size)
    assert groups[group.id].numbers.tolist() == [1, 2]


@pytest.mark.parametrize("ranks", [[], [3, 1], [0, 1, 3], [0, 1, 2, 4, 5, 6, 16, 17], [2, 2], [0, 2, 1, 4]])
def test_ranks_of_no_grid_have_no_numbers(ranks: list[int]) -> None:
    assert numbers_of(ranks) == []
    assert list(members_of([])) == []


@pytest.mark.parametrize("seed", range(50))
def test_members_of_a_mesh_arrive(seed: int) -> None:
    """Any dimensions of a mesh, flattened into one process group."""
    rng = random.Random(seed)
    shape = [rng.randrange(1, 5) for _ in range(4)]
    kept = sorted(rng.sample(range(4), rng.randrange(1, 4)))
    mesh = np.arange(math.prod(shape)).reshape(shape)
    at = tuple(slice(None) if axis in kept else rng.randrange(shape[axis]) for axis in range(4))
    ranks = mesh[at].reshape(-1).tolist()
    assert list(members_of(numbers_of(ranks))) == ranks
