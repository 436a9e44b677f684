"""The analyzer on meshes of 2 x 2 ranks: groups that are not wholly in view, and ranks that leave the common order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from job.tests.support.analyzed import SECONDS, everything, last, only, told
from job.tests.support.observations import WORLD, member, rank
from job.tests.support.observations import observed as seen
from job.tests.support.observed_jobs import every_rank, hung, in_call, not_entering, others, some_reduce
from tensorwire_job.analyzer import Analyzer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire_job.model import Observation, ProcessGroup

LOOP = 40  # operations of the tp loop


def group_of(number: int, axis: str) -> str:
    """The process group of a rank along an axis: tp is 0-1 and 2-3, dp is 0-2 and 1-3."""
    return f"{axis}{number // 2 if axis == 'tp' else number % 2}"


def peer_of(number: int, axis: str) -> int:
    return number ^ (1 if axis == "tp" else 2)


def on(number: int, axis: str, entered: int, waits: float | None = None, *, idle: float = 60.0) -> ProcessGroup:
    one = member(entered, waits=waits, idle=idle, group=group_of(number, axis), size=2, known=entered > 0)
    return replace(one, name=axis)


def world(entered: int, waits: float | None = None) -> ProcessGroup:
    return member(entered, waits=waits, idle=60.0, known=entered > 0)


def left_the_loop(culprit: int, *, dp_is_known: bool) -> Callable[[int, float], list[ProcessGroup]]:
    """All run a loop in tp, then one operation in dp, then one of the world; one rank leaves the loop one early.

    Its tp peer waits for it there, its dp peer has come with it to the world, and the fourth waits in dp.
    """

    def groups(number: int, age: float) -> list[ProcessGroup]:
        tp, dp = LOOP, 1
        if number == culprit:
            return [on(number, "tp", LOOP - 1), on(number, "dp", 1), world(1, age)]
        if number == peer_of(culprit, "tp"):
            return [on(number, "tp", tp, age), *([on(number, "dp", 0)] if dp_is_known else []), world(0)]
        if number == peer_of(culprit, "dp"):
            return [on(number, "tp", tp), on(number, "dp", dp), world(1, age)]
        return [on(number, "tp", tp), on(number, "dp", dp, age), world(0)]

    return groups


@every_rank
def test_who_left_a_loop_early_is_named_where_groups_are_known(culprit: int) -> None:
    finding = only(last(hung(left_the_loop(culprit, dp_is_known=True))))
    assert (finding.code, finding.suspects) == ("TW-H2", [culprit])
    assert finding.confidence == "medium"
    assert any(f"rank {culprit} has entered #{LOOP - 1} of tp, the other ranks #{LOOP}" in f for f in finding.evidence)


@every_rank
def test_groups_whose_names_differ_in_a_number_are_one_place_of_the_program(culprit: int) -> None:
    """As in a mesh, but the script calls its groups tp0, tp1, dp0 and dp1 itself."""
    of_mesh = left_the_loop(culprit, dp_is_known=True)
    finding = only(last(hung(lambda number, age: [replace(one, name=one.id) for one in of_mesh(number, age)])))
    assert (finding.code, finding.suspects) == ("TW-H2", [culprit])


@every_rank
def test_a_group_that_is_not_wholly_in_view_is_no_root(culprit: int) -> None:
    findings = last(hung(left_the_loop(culprit, dp_is_known=False)))
    assert findings
    for finding in findings:
        assert finding.code != "TW-H3"
        assert finding.suspects in ([], [culprit])
        assert "all members" not in " ".join([finding.summary, *finding.evidence])


@every_rank
def test_who_went_elsewhere_is_named_and_not_those_who_go_on(culprit: int) -> None:
    """It waits for its dp peer, whose tp loop goes on for long."""

    def groups(number: int, age: float) -> list[ProcessGroup]:
        if number == culprit:
            return [on(number, "tp", LOOP - 1), on(number, "dp", 1, age)]
        if number == peer_of(culprit, "tp"):
            return [on(number, "tp", LOOP, age), on(number, "dp", 0)]
        return [on(number, "tp", LOOP + int(50 * age), idle=0.02), on(number, "dp", 0)]

    finding = only(last(hung(groups)))
    assert (finding.code, finding.suspects, finding.victims) == ("TW-H2", [culprit], 1)
    assert finding.summary.endswith(f"is in all_reduce #1 of dp, which rank {peer_of(culprit, 'dp')} does not come to")


@every_rank
def test_who_is_stuck_is_named_though_others_are_further(culprit: int) -> None:
    """No rank has left the order: those that wait are where the stuck one has not come yet."""

    def groups(number: int, age: float) -> list[ProcessGroup]:
        if number == culprit:
            return [on(number, "tp", LOOP), on(number, "dp", 4)]
        if number == peer_of(culprit, "dp"):
            return [on(number, "tp", LOOP), on(number, "dp", 5, age)]
        if number == peer_of(culprit, "tp"):
            return [on(number, "tp", LOOP + 1, age), on(number, "dp", 5)]
        return [on(number, "tp", LOOP + 1, age), on(number, "dp", 5)]

    assert told(last(hung(groups)), "victims") == ("TW-H1", [culprit], 3)


@every_rank
def test_who_has_not_come_to_a_group_is_known_where_the_group_tells_its_members(culprit: int) -> None:
    peer = peer_of(culprit, "tp")

    def groups(number: int, age: float) -> list[ProcessGroup]:
        if number == peer:
            return [replace(on(number, "tp", 1, age), members=tuple(sorted((culprit, peer))))]
        return [world(7)]

    assert told(last(hung(groups)), "confidence") == ("TW-H1", [culprit], "high")


def test_a_wait_for_members_that_are_not_known_is_unknown_with_stacks() -> None:
    analyzer, at = Analyzer(SECONDS), hung(lambda number, age: [on(1, "tp", 1, age) if number == 1 else world(7)])
    for time in range(13):
        analysis = analyzer.update(at(float(time)))
    finding = only(analysis.findings)
    assert (finding.code, finding.suspects) == ("TW-UNKNOWN", [])
    assert "all members" not in finding.summary
    assert "not known which other ranks are in the group" in finding.summary
    assert analysis.stacks_of[0] == 1
    assert len(analysis.stacks_of) == 3
    analyzer.add_stack(1, "in all_reduce")
    assert analyzer.update(at(13.0)).findings[0].stacks == {1: "in all_reduce"}


@every_rank
def test_a_wait_for_members_that_are_not_known_stands_beside_no_finding(culprit: int) -> None:
    """Its partner waits in a group that no other rank has used, the others for it in the world's."""

    def groups(number: int, age: float) -> list[ProcessGroup]:
        if number == culprit:
            return [world(30)]
        if number == peer_of(culprit, "dp"):
            return [world(31), on(number, "dp", 1, age)]
        return [world(31, age)]

    assert told(last(hung(groups))) == ("TW-H1", [culprit])


@pytest.mark.parametrize("state", [{}, {"state": "T"}])
def test_nothing_is_said_of_all_members_where_some_are_not_in_view(state: dict[str, str]) -> None:
    ranks = [rank(n, member(31, waits=9.0), **(state if n == 1 else {})) for n in (0, 1, 3)]
    finding = only(Analyzer(SECONDS).update(seen(50.0, ranks)).findings)
    text = " ".join([finding.summary, *finding.evidence])
    assert "all members" not in text
    assert finding.suspects == ([1] if state else [2])
    assert ("the 3 of 4 members in view had entered it alike" in text) == bool(state)


@every_rank
def test_what_the_sibling_group_called_tells_which_of_two_calls_is_wrong(culprit: int) -> None:
    """The other pair has called the operation of that number and waits elsewhere, or goes on."""

    def groups(number: int, age: float) -> list[ProcessGroup]:
        size = 7 if number == culprit else 8
        is_in_pair = number in (culprit, peer_of(culprit, "tp"))
        own = member(31, waits=age if is_in_pair else None, idle=age, group=group_of(number, "tp"), size=2, numel=size)
        return [replace(own, name="tp")]

    assert told(last(hung(groups)), "sides") == ("TW-H2", [culprit], [])


def test_stages_of_a_pipeline_that_do_unlike_work_are_no_deviants() -> None:
    """The groups of the second stage have entered far more: that is no other order, and no rank is named for it."""

    def groups(number: int, age: float) -> list[ProcessGroup]:
        first, second = ("a", "b") if number in (0, 1) else ("b", "a")
        tp = on(number, "tp", 100 if number < 2 else 900)
        return [tp, member(11, waits=age, group=first), member(10, group=second)]

    finding = only(last(hung(groups)))
    assert (finding.code, finding.suspects, sorted(finding.sides)) == ("TW-H2", [], [[0, 1], [2, 3]])
    assert WORLD == 4


@every_rank
@pytest.mark.parametrize("activity", ["new_group", "monitored_barrier"])
def test_ranks_that_wait_in_what_no_group_counts_are_victims(culprit: int, activity: str) -> None:
    """All but one make a group, which that one goes past."""

    finding = only(last(in_call(activity, others(culprit), some_reduce([culprit]))))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H2", [culprit], "medium")
    assert f" in {activity}: each waits for the other" in finding.summary


@every_rank
@pytest.mark.parametrize("activity", ["new_group", "recv from any source"])
def test_who_waits_for_others_is_no_suspect_beside_one_that_is_stuck(culprit: int, activity: str) -> None:
    maker = (culprit + 1) % WORLD
    inside = [n for n in range(WORLD) if n not in (culprit, maker)]
    finding = only(last(in_call(activity, [maker], some_reduce(inside))))
    assert (finding.code, finding.suspects) == ("TW-H1", [culprit])
    assert any(fact.startswith(f"rank {maker} waits in {activity} for rank") for fact in finding.evidence)


@every_rank
def test_one_that_receives_from_any_source_may_be_wrong_or_one_of_the_others(culprit: int) -> None:
    finding = only(last(in_call("recv from any source", [culprit], not_entering(culprit))))
    assert (finding.code, finding.suspects) == ("TW-H2", [])
    assert [culprit] in finding.sides


def test_who_serves_requests_while_others_compute_is_no_finding() -> None:
    """A server waits for as long as no rank asks it for anything."""
    seen_at = in_call("recv from any source", [0], some_reduce([]))

    def at(time: float) -> Observation:
        seen = seen_at(time)
        for n, one in seen.ranks.items():
            one.process.cpu_seconds = 0.0 if n == 0 else time
        return seen

    assert not [each for each in everything(at, 20) if each.level == "finding"]


@every_rank
def test_who_does_not_come_to_a_monitored_barrier_is_named(culprit: int) -> None:
    finding = only(last(in_call("monitored_barrier", others(culprit), some_reduce([]))))
    assert (finding.code, finding.suspects, finding.victims) == ("TW-H1", [culprit], 3)
    assert finding.summary == f"rank {culprit} has not come to monitored_barrier; 3 ranks wait in it"
    assert finding.confidence == "medium"
