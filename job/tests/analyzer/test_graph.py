"""The theory on graphs made by hand, and against the definition on random ones."""

from __future__ import annotations

import random
import time
from itertools import product

import pytest

from tensorwire_job.analyzer.graph import Entry, Explanation, Graph, Need, explain, first_differences, last_stray


def of(*done: int, **waits: list[int]) -> Graph:
    """A graph in which each vertex waits for all of some: of(_0=[1, 2])."""
    return Graph({int(name[1:]): [Need(for_whom)] for name, for_whom in waits.items()}, done=done)


def test_a_rank_that_waits_for_nobody_explains_those_that_wait_for_it() -> None:
    assert explain(of(_0=[2], _1=[2], _3=[2])) == Explanation(single=(2,))


def test_a_chain_is_explained_by_its_end() -> None:
    assert explain(of(_0=[1], _1=[2], _2=[3], _4=[2])) == Explanation(single=(3,))


def test_who_waits_for_one_that_is_done_may_have_called_once_too_often() -> None:
    assert explain(of(_0=[1])).single == (1,)
    assert explain(of(1, _0=[1])).single == (0, 1)
    assert explain(of(1, 2, 3, _0=[1, 2, 3])).single == (0,)


def test_of_a_circle_each_explains_it_and_of_two_circles_whoever_is_on_both() -> None:
    assert set(explain(of(_0=[1], _1=[2], _2=[0])).single) == {0, 1, 2}
    assert explain(of(_0=[1], _1=[0, 2], _2=[1])).single == (1,)


def test_one_against_many_in_the_same_operation() -> None:
    assert explain(of(_0=[2], _1=[2], _3=[2], _2=[0, 1, 3])).single == (2,)


def test_two_against_two_are_explained_by_nobody_alone() -> None:
    found = explain(of(_0=[2, 3], _1=[2, 3], _2=[0, 1], _3=[0, 1]))
    assert (found.single, found.together) == ((), ())
    assert set(found.circle) & {0, 1}
    assert set(found.circle) & {2, 3}


def test_two_faults_explain_it_together() -> None:
    assert explain(of(_0=[2, 3], _1=[2, 3], _4=[3])) == Explanation(together=(2, 3))


def test_any_of_several_is_enough() -> None:
    graph = Graph({0: [Need([1, 2], is_any=True)], 3: [Need([0])]})
    assert graph.stuck == {0, 1, 2, 3}
    graph = Graph({0: [Need([1, 2], is_any=True)], 3: [Need([0])]}, done=[1, 2])
    assert explain(graph).single == (0, 1, 2)
    assert not Graph({0: [Need([1, 2], is_any=True)]}, free=[2]).stuck


def test_all_needs_of_a_vertex_have_to_be_met() -> None:
    assert explain(Graph({0: [Need([1]), Need([2])], 3: [Need([0])]})) == Explanation(together=(1, 2))
    assert explain(Graph({0: [Need([1]), Need([2])], 3: [Need([0])]}, done=[1, 2])).single == (0,)


def test_nothing_is_known_against_a_rank_that_is_out_of_view() -> None:
    assert not Graph({0: [Need([5])], 1: [Need([0])]}, free=[5]).stuck
    assert explain(Graph({0: [Need([5, 2])], 1: [Need([0])]}, free=[5])).single == (2,)


def test_parts_that_have_nothing_to_do_with_each_other() -> None:
    graph = of(_0=[1], _1=[0], _2=[3], _4=[3])
    parts = graph.components()
    assert parts == [{0, 1}, {2, 3, 4}]
    assert explain(graph, parts[1]).single == (3,)


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_explanations_are_those_of_the_definition(first: int) -> None:
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        vertices = range(rng.randrange(2, 8))
        needs = {}
        for vertex in vertices:
            others = [other for other in vertices if other != vertex]
            if rng.random() < 0.8:
                needs[vertex] = [
                    Need(rng.sample(others, rng.randrange(1, len(others) + 1)), is_any=rng.random() < 0.2)
                    for _ in range(rng.choice([1, 1, 2]))
                ]
        done = [vertex for vertex in vertices if vertex not in needs and rng.random() < 0.5]
        free = [vertex for vertex in vertices if vertex not in done and rng.random() < 0.1]
        graph = Graph(needs, free, done)
        expected = tuple(
            vertex for vertex in vertices if graph.stuck and _goes_on(needs, {vertex, *free}) >= graph.stuck
        )
        assert explain(graph).single == expected


def _goes_on(needs: dict[int, list[Need]], replaced: set[int]) -> set[int]:
    """By trying again and again until nothing changes."""
    found = set(replaced)
    for _, (vertex, wanted) in product(range(len(needs) + 1), needs.items()):
        if all((any if need.is_any else all)(other in found for other in need.of) for need in wanted):
            found.add(vertex)
    return found


def test_a_circle_of_many_takes_bounded_time_and_names_nobody() -> None:
    count = 10_000
    graph = Graph({vertex: [Need([(vertex + 1) % count])] for vertex in range(count)})
    start = time.process_time()
    found = explain(graph)
    assert time.process_time() - start < 5.0
    assert found.single == ()
    assert len(found.circle) == count


def entries(*what: str | None, group: str = "g", kind: str | None = None, start: int = 1) -> list[Entry]:
    return [Entry(group, number, each, kind) for number, each in enumerate(what, start)]


def test_the_first_number_that_differs_counts_and_most_speak_against_the_few() -> None:
    usual = entries("a", "b", "c")
    (found,) = first_differences({0: usual, 1: usual, 2: entries("a", "c", "a")})
    assert (found.number, found.sides, found.accused) == (2, ((0, 1), (2,)), (2,))


def test_of_two_that_differ_none_is_accused_unless_groups_of_their_kind_speak() -> None:
    pair = {0: entries("a", "b", kind="tp"), 1: entries("a", "c", kind="tp")}
    (found,) = first_differences(pair)
    assert (found.sides, found.accused) == (((0,), (1,)), ())
    other = {2: entries("a", "b", group="h", kind="tp"), 3: entries("a", "b", group="h", kind="tp")}
    (found,) = first_differences(pair | other)
    assert found.accused == (1,)


def test_what_only_a_group_has_to_agree_on_is_judged_by_its_members_alone() -> None:
    """A mesh may have a root of its own in each of its groups."""
    first = {rank: [Entry("g", 1, "a", "tp", own=0)] for rank in range(4)}
    second = {rank: [Entry("h", 1, "a", "tp", own=1)] for rank in range(4, 7)}
    assert first_differences(first | second) == []
    (found,) = first_differences(first | second | {7: [Entry("h", 1, "a", "tp", own=0)]})
    assert (found.group, found.sides, found.accused) == ("h", ((4, 5, 6), (7,)), (7,))
    (found,) = first_differences({0: [Entry("g", 1, "a", "tp")], 1: first[1], 2: [Entry("g", 1, "a", "tp", own=3)]})
    assert (found.sides, found.accused) == (((1,), (2,)), ())


def test_calls_that_are_not_known_differ_from_none() -> None:
    assert first_differences({0: entries("a", None), 1: entries("a", "b"), 2: entries()}) == []


def test_what_comes_later_is_a_consequence() -> None:
    first = [Entry("g", 1, "a"), Entry("h", 1, "x")]
    second = [Entry("g", 1, "b"), Entry("h", 1, "y")]
    assert [each.group for each in first_differences({0: first, 1: second})] == ["g"]


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("abcabca", "abcabcb", [1]),
        ("abcabca", "abcabca", []),
        ("abcabcb", "abcabcb", []),  # as an evaluation in both
        ("abcabcac", "abcabcb", []),  # each in its own way, at one time
        ("abcacabca", "abcabcabcb", [1]),  # each in its own way, and 1 by far the later
        ("abcbabcabca", "abcabcabca", []),  # too long ago
        ("abc", "abd", []),  # never made before
        ("", "abcac", [1]),
    ],
)
def test_who_leaves_its_own_order_of_late_and_last_is_a_stray(first: str, second: str, found: list[int]) -> None:
    assert last_stray({0: first, 1: second}) == found
