"""The analyzer on ranks that wait for a key of a store, by their stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from job.tests.support.analyzed import SECONDS, everything, last, only, told, watch
from job.tests.support.observations import WORLD, dead, member, observed, rank
from job.tests.support.observed_jobs import every_rank, in_call, others, some_reduce

if TYPE_CHECKING:
    from tensorwire_job.model import Observation, ProcessGroup


@every_rank
def test_who_did_not_set_the_key_that_all_others_wait_for(culprit: int) -> None:
    findings = everything(in_call("Store.wait", others(culprit), some_reduce([culprit])), 20)
    assert {(each.code, *each.suspects, each.confidence) for each in findings} == {("TW-H2", culprit, "medium")}
    assert " in Store.wait: each waits for the other" in findings[-1].summary


@every_rank
def test_who_alone_waits_for_a_key_is_to_blame(culprit: int) -> None:
    finding = only(last(in_call("Store.wait", [culprit], some_reduce(others(culprit)))))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H1", [culprit], "medium")
    assert any("its main thread is in Store.wait" in fact for fact in finding.evidence)


def test_one_of_several_would_do_that_may_have_had_to_set_it() -> None:
    finding = only(last(in_call("Store.wait", [0, 2], some_reduce([1, 3]))))
    assert (finding.code, finding.suspects, sorted(finding.sides)) == ("TW-H2", [], [[1], [3]])


@every_rank
def test_who_is_stuck_is_named_and_not_who_waits_for_its_key(culprit: int) -> None:
    waiting = (culprit + 1) % WORLD
    inside = [n for n in range(WORLD) if n not in (culprit, waiting)]
    finding = only(last(in_call("Store.wait", [waiting], some_reduce(inside))))
    assert (finding.code, finding.suspects) == ("TW-H1", [culprit])
    assert any(fact.startswith(f"rank {waiting} waits in Store.wait for rank") for fact in finding.evidence)


@every_rank
def test_who_is_stuck_before_it_sets_the_key(culprit: int) -> None:
    """No rank is in an operation."""
    finding = only(last(in_call("Store.wait", others(culprit), some_reduce([]))))
    assert (finding.code, finding.suspects, finding.victims) == ("TW-H1", [culprit], 3)
    assert finding.summary == f"rank {culprit} has not set what others wait for (Store.wait); 3 ranks wait in it"


@pytest.mark.parametrize("saves", [True, False], ids=["saves", "uses a CPU"])
def test_who_works_before_it_sets_the_key_is_a_notice(saves: bool) -> None:
    seen_at = in_call("Store.wait", [0, 1, 3], some_reduce([]))

    def at(time: float) -> Observation:
        seen = seen_at(time)
        if saves and time > 3.0:
            seen.ranks[2].activity, seen.ranks[2].activity_seconds = "torch.save", time - 3.0
        if not saves:
            seen.ranks[2].process.cpu_seconds = time
        return seen

    finding = only(last(at))
    assert (finding.level, finding.suspects) == ("notice", [2])


def test_ranks_that_all_wait_for_a_key_are_unknown_trouble() -> None:
    finding = only(last(in_call("Store.wait", range(WORLD), some_reduce([])), 3.0 + 2 * SECONDS.hang_seconds))
    assert (finding.level, finding.code, finding.suspects) == ("finding", "TW-UNKNOWN", [])


@every_rank
def test_who_alone_waits_for_a_key_while_the_others_are_in_what_no_group_counts(culprit: int) -> None:
    seen_at = in_call("Store.wait", [culprit], some_reduce([]))

    def at(time: float) -> Observation:
        seen = seen_at(time)
        for number in others(culprit) if time > 3.0 else []:
            seen.ranks[number].activity, seen.ranks[number].activity_seconds = "new_group", time - 3.0
        return seen

    assert told(last(at)) == ("TW-H1", [culprit])


def test_it_is_told_what_waits_for_one_that_waits_for_a_key_and_not_what_waits_for_those() -> None:
    """0 waits for a key, 1 in a group of two for 0, and all others for 1, who are the most."""

    def groups(number: int, age: float) -> list[ProcessGroup]:
        pair = [member(31 if number else 30, waits=age if number else None, group="pair", size=2)] if number < 2 else []
        others = [member(30 if number == 1 else 31, waits=age if number > 1 else None, group="others", size=3)]
        return pair if number == 0 else [*pair, *others]

    finding = only(last(in_call("Store.wait", [0], groups)))
    assert (finding.code, finding.suspects) == ("TW-H1", [0])
    assert finding.summary == "rank 0 has not entered all_reduce #31 of pair; 3 ranks wait for it"


@pytest.mark.parametrize("in_group", [False, True], ids=["Store.wait", "all_reduce"])
def test_what_a_rank_did_before_it_ended_is_no_work_of_now(in_group: bool) -> None:
    """It works until second 40, then ends well, and the others still wait for it."""

    def at(time: float) -> Observation:
        waited = max(time - 10.0, 0.0)
        ranks = []
        for number in range(WORLD - 1):
            waits = waited if in_group and waited else None
            own = member(31 if waits else 30, waits=waits, idle=max(waited, 0.1))
            stack = {"activity": "Store.wait", "activity_seconds": waited} if waited and not in_group else {}
            ranks.append(rank(number, own, setup="initialized", setup_seconds=time, **stack))
        gone = time - 40.0
        ended = {**dead(gone, "exit 0"), "exit_kind": "end", "exit_seconds": gone} if gone > 0 else {}
        more = {"cpu_seconds": 0.9 * min(time, 40.0), "setup": "initialized", "setup_seconds": time}
        return observed(time, [*ranks, rank(WORLD - 1, member(30, idle=max(waited, 0.1)), **more, **ended)])

    for time, analysis in watch(at, 60.0):
        codes = {(finding.code, *finding.suspects) for finding in analysis.findings if finding.level == "finding"}
        if time > 40.0 + SECONDS.lost_seconds:
            assert codes == {("TW-LOST", WORLD - 1)}, time


@pytest.mark.parametrize("activity", ["Store.wait", "recv from any source"])
def test_who_waits_while_all_others_have_ended_is_not_said_to_do_nothing(activity: str) -> None:
    def at(time: float) -> Observation:
        stack = {"activity": activity, "activity_seconds": time - 3.0} if time > 3.0 else {}
        gone = time - 2.0
        ended = {**dead(gone, "exit 0"), "exit_kind": "end", "exit_seconds": gone} if gone > 0 else {}
        of_all = {"setup": "initialized", "setup_seconds": time + 5.0}
        own = member(30, idle=max(gone, 0.1))
        others = [rank(number, own, **of_all, **ended) for number in range(1, WORLD)]
        return observed(time, [rank(0, own, **of_all, **stack), *others])

    assert not [each for each in everything(at, 20.0) if "done nothing since" in each.summary]
