"""The simulator: layouts are those of frameworks, and simulated troubles are found through the real protocol."""

from __future__ import annotations

import pytest

pytest.importorskip("prometheus_client")

from job.benchmarks import scenarios, simulate
from job.benchmarks.layout import Layout
from job.benchmarks.simulated_job import SimulatedJob

RING, TREE = Layout(1, 1, 8), Layout(2, 1, 4, "tree")


@pytest.mark.parametrize("layout", [RING, TREE, Layout(4, 2, 8), Layout(8, 1, 4, "tree")])
def test_every_rank_is_in_one_group_of_each_kind(layout: Layout) -> None:
    for kind, rows in layout.groups.items():
        assert sorted(rows.ravel()) == list(range(layout.world_size))
        for rank in (0, layout.world_size - 1):
            assert rank in rows[layout.group_of[kind][rank]]
    assert layout.groups["world"].shape == (1, layout.world_size)


def test_tensor_parallel_ranks_are_neighbours_and_stages_feed_one_another() -> None:
    layout = Layout(4, 2, 8)
    assert layout.groups["tp"][0].tolist() == [0, 1, 2, 3]
    assert layout.groups["pp"][1].tolist() == [1, 5]
    assert layout.groups["dp"][0].tolist() == list(range(0, 64, 8))
    assert layout.previous_stage[:8].tolist() == [-1, -1, -1, -1, 0, 1, 2, 3]


@pytest.mark.parametrize("layout", [RING, Layout(1, 1, 8, "tree"), Layout(4, 2, 8)])
def test_edges_go_both_ways_and_reach_everyone(layout: Layout) -> None:
    pairs = {tuple(pair) for pair in layout.edges.tolist()}
    assert pairs == {(b, a) for a, b in pairs}
    assert {a for a, _ in pairs} == set(range(layout.world_size))
    assert min(sum(1 for a, _ in pairs if a == rank) for rank in range(layout.world_size)) >= 2


def test_a_job_is_its_seed() -> None:
    def counts(seed: int) -> list[int]:
        job = SimulatedJob(TREE, seed)
        job.advance(60.0)
        return [g.completed for o in job.observe().values() for r in o.ranks.values() for g in r.process_groups]

    assert counts(1) == counts(1)
    assert counts(1) != counts(2)
    assert min(counts(1)) >= 0


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (RING, "process killed"),
        (RING, "another operation"),
        (TREE, "slow compute"),
        (RING, "slow link"),
        (RING, "agent silent"),
        pytest.param(TREE, "rank sleeps", marks=pytest.mark.slow),
        pytest.param(TREE, "stopped inside", marks=pytest.mark.slow),
        pytest.param(RING, "elastic restart", marks=pytest.mark.slow),
        pytest.param(RING, "one slow step", marks=pytest.mark.slow),
    ],
)
def test_simulated_troubles_are_found(layout: Layout, name: str) -> None:
    bench = simulate.Bench(layout, 7)
    rank = 5
    scenario = scenarios.all_at(bench.job, rank)[name]
    for now, found in simulate.run(scenario, bench):
        assert now >= simulate.FAULT or not found
        assert scenario.code or not found
    assert all(scenarios.is_right(scenario, [one.code for one in found], [one.suspects for one in found])), found
