"""Groups that ranks made in unlike orders, or of unlike members. torch numbers groups as each rank makes them."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from job.tests.support.analyzed import at_once
from job.tests.support.observations import dead, member, rank
from tensorwire_job.model import Confidence, Finding, ProcessGroup, Rank

Made = dict[int, Sequence[int]]
"""Lists of members by torch's number of the group."""


def held(number: int, members: Sequence[int], *, waits: float | None = None, entered: int = 0) -> ProcessGroup:
    own = member(entered, waits=waits, group=f"{number:08x}{zlib.crc32(repr(members).encode()):08x}", size=len(members))
    return replace(own, name=str(number), members=members, operation=own.operation if entered else None)


def made_by(number: int, lists: Sequence[Sequence[int]]) -> Made:
    """The groups of a rank that makes these, one after the other, and is in them."""
    return {place: members for place, members in enumerate(lists, 1) if number in members}


def makes(number: int, world: int, made: Made) -> Rank:
    groups = [held(place, members) for place, members in made.items()]
    return rank(number, *groups, world=world, activity="new_group", activity_seconds=90.0)


def found(ranks: list[Rank]) -> Finding:
    (finding,) = at_once(ranks, world=len(ranks))
    return finding


@pytest.mark.parametrize("culprit", range(4))
def test_the_rank_that_makes_other_members_than_the_rest(culprit: int) -> None:
    lists = {number: [[number]] if number == culprit else [range(4)] for number in range(4)}
    finding = found([makes(number, 4, made_by(number, lists[number])) for number in range(4)])
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H2", [culprit], Confidence.HIGH)
    assert f"rank {culprit} has made group 1 of rank {culprit}" in finding.summary


@pytest.mark.parametrize("seed", range(40))
def test_one_rank_that_makes_the_groups_of_a_mesh_in_another_order(seed: int) -> None:
    """Only the culprit is ever named, and always where it holds a group that others hold under another number."""
    source = random.Random(seed)
    world = source.choice([4, 8, 16])
    width = source.choice([size for size in (2, 4, 8) if size < world])
    rows = [range(first, first + width) for first in range(0, world, width)]
    columns = [range(first, world, width) for first in range(width)]
    usual, other = [*rows, *columns], [*columns, *rows]
    culprit = source.randrange(world)
    ranks = [makes(number, world, made_by(number, other if number == culprit else usual)) for number in range(world)]
    finding = found(ranks)
    assert finding.suspects in ([], [culprit])
    told = finding.suspects or [number for side in finding.sides for number in side]
    assert culprit in told or not told


@pytest.mark.parametrize("seed", range(20))
def test_one_rank_that_makes_its_own_groups_of_a_mesh_in_another_order(seed: int) -> None:
    """torch names a group that its members alone make by its list, and by how many groups its maker has: then one list
    has two names, and its members do not meet."""
    source = random.Random(seed)
    world = source.choice([4, 8, 16])
    width = source.choice([size for size in (2, 4, 8) if size < world])
    rows = [range(first, first + width) for first in range(0, world, width)]
    columns = [range(first, world, width) for first in range(width)]
    culprit = source.randrange(world)
    orders = [[*columns, *rows] if number == culprit else [*rows, *columns] for number in range(world)]
    lists = [[members for members in orders[number] if number in members] for number in range(world)]
    num_made = [0] * world
    while True:  # a group is made once all of its members make it after as many others
        ready = [n for n in range(world) if num_made[n] < 2 and _all_make(lists, num_made, n)]
        if not ready:
            break
        for number in ready:
            num_made[number] += 1
    named = {number: made[: num_made[number] + 1] for number, made in enumerate(lists)}
    ranks = [
        rank(
            number, member(5, idle=90.0, group="default_pg", size=world),
            *(held(zlib.crc32(repr((each, place)).encode()), each) for place, each in enumerate(made)),
            world=world, activity="new_group", activity_seconds=90.0,
        )
        for number, made in named.items()
    ]  # fmt: skip
    finding = found(ranks)
    assert (finding.code, finding.suspects) == ("TW-H2", [culprit])
    assert finding.confidence != Confidence.LOW


def _all_make(lists: list[list[range]], num_made: list[int], number: int) -> bool:
    place = num_made[number]
    return all(num_made[n] == place and lists[n][place] == lists[number][place] for n in lists[number][place])


def test_one_list_of_two_names_where_no_rank_made_other_groups_is_sides() -> None:
    made = {0: [held(1, range(2))], 1: [held(2, range(2))]}
    ranks = [rank(n, *groups, world=2, activity="new_group", activity_seconds=90.0) for n, groups in made.items()]
    finding = found(ranks)
    assert (finding.code, finding.suspects, finding.sides) == ("TW-H2", [], [[0], [1]])


def test_a_group_that_was_made_anew_is_no_other_list() -> None:
    """One rank makes it anew, and another has not yet: it works, or hangs elsewhere."""
    used = held(1, range(2), entered=9)
    ranks = [
        rank(0, held(2, range(2)), world=2, activity="new_group", activity_seconds=90.0),
        rank(1, used, world=2),
    ]
    finding = found(ranks)
    assert (finding.code, finding.suspects) == ("TW-H1", [1])


@pytest.mark.parametrize("culprit", range(3))
def test_who_made_other_members_than_one_that_was_aborted_in_the_group(culprit: int) -> None:
    """gloo aborts a rank that is sent more than it expects: it knows of fewer members, or another does."""
    lists = {number: range(3) if number == culprit else range(4) for number in range(4)}
    victim = (culprit + 1) % 4
    ends = {n: dead(60.0, "RuntimeError: Connection closed") | {"exit_kind": "failure"} for n in range(4)}
    ends[victim] = dead(60.1, "killed by SIGABRT") | {"exit_kind": "crash"}
    finding = found([rank(n, held(1, lists[n], entered=1), world=4, **ends[n]) for n in range(4)])
    assert (finding.code, finding.suspects) == ("TW-H2", [culprit])


def test_halves_that_have_not_all_come_to_their_group_are_sides() -> None:
    """The odd ones out may be those who are about to make the same."""
    lists = {0: [range(0, 4, 2)], 1: [range(1, 4, 2)], 2: [range(0, 4, 2)], 3: []}
    finding = found([makes(number, 4, made_by(number, lists[number])) for number in range(4)])
    assert (finding.suspects, finding.sides) == ([], [[0, 2], [1, 3]])


def test_halves_that_make_one_group_each_are_sides_where_they_stand_still_in_it() -> None:
    halves = [[range(2)], [range(2, 4)]]
    ranks = [makes(number, 4, made_by(number, halves[number // 2])) for number in range(4)]
    finding = found(ranks)
    assert (finding.suspects, finding.sides, finding.confidence) == ([], [[0, 1], [2, 3]], Confidence.MEDIUM)


def test_halves_that_work_tell_nothing_of_a_rank_that_does_not_come() -> None:
    """Nor do groups of one number that an earlier world had."""
    world = [member(40, waits=90.0) if number != 3 else member(39, idle=90.0) for number in range(4)]
    halves = [held(1, range(2), entered=9), held(1, range(2, 4), entered=9)]
    finding = found([rank(number, world[number], halves[number // 2]) for number in range(4)])
    assert (finding.code, finding.suspects) == ("TW-H1", [3])
    earlier = [held(1, range(4), entered=5), held(1, range(4), entered=5)]
    ranks = [rank(number, world[number], halves[number // 2], earlier[number // 2]) for number in range(4)]
    assert found(ranks).suspects == [3]


def test_as_many_lists_of_one_name_as_there_are_pairs() -> None:
    """The work grows with the lists, not with their third power: this would not end."""
    pairs = [[number & ~1, number | 1] for number in range(2048)]
    finding = found([makes(number, 2048, {1: pair}) for number, pair in enumerate(pairs)])
    assert (finding.code, finding.suspects, len(finding.sides)) == ("TW-H2", [], 1024)
