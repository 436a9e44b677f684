"""The analyzer on jobs in which an operation is open for long while others go on, as they may be meant to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from job.tests.support.analyzed import SECONDS, only, watch
from job.tests.support.observations import WORLD, member, observed, rank
from job.tests.support.observed_jobs import every_rank, hung, others
from tensorwire_job.analyzer import Analyzer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire_job.model import Finding, Observation

START = 100.0  # of what is looked at, from the set-up of the job on


def evaluator(number: int, *, rate: float | None = None, until: float = 1e9) -> Callable[[float], Observation]:
    """It waits for what the others broadcast now and then. They train in a group of their own, until some time."""

    def at(time: float) -> Observation:
        steps = int(10 * min(time, until))
        ranks = []
        for n in range(WORLD):
            groups = [member(3, waits=time, name="broadcast", baseline_rate=rate)]
            if n != number:
                trainers = member(steps, idle=max(time - until, 0.1), group="trainers", size=WORLD - 1)
                groups = [member(2, idle=time, name="broadcast", baseline_rate=rate), trainers]
            ranks.append(rank(n, *groups, setup_seconds=START + time))
        return observed(time, ranks)

    return at


def voter(number: int) -> Callable[[float], Observation]:
    """It has entered an operation of a group without waiting for it. All train on."""

    def at(time: float) -> Observation:
        ranks = []
        for n in range(WORLD):
            steps = int(10 * time) + n  # agents do not look at all ranks at one time
            votes = member(1, waits=time, group="votes") if n == number else member(0, group="votes", known=False)
            ranks.append(rank(n, member(steps), votes, setup_seconds=START + time))
        return observed(time, ranks)

    return at


def said(at: Callable[[float], Observation], until: float, **more: Any) -> list[tuple[float, Finding]]:
    return [(time, finding) for time, analysis in watch(at, until, **more) for finding in analysis.findings]


@every_rank
def test_who_waits_for_ranks_that_train_on_is_a_notice(culprit: int) -> None:
    found = said(evaluator(culprit), 29.0)
    assert found[0][0] == SECONDS.hang_seconds
    assert {(finding.level, finding.code) for _, finding in found} == {("notice", "TW-H1")}
    finding = found[-1][1]
    assert finding.summary.endswith(
        " have not entered broadcast #3 of world, and go on elsewhere; 1 rank waits for them"
    )
    assert finding.evidence[0].startswith(f"rank {culprit} waits in broadcast #3 of world for ranks ")
    assert finding.victims == 1


@every_rank
def test_it_is_a_finding_after_six_gates(culprit: int) -> None:
    found = said(evaluator(culprit), 40.0)
    first = next(time for time, finding in found if finding.level == "finding")
    assert first == 6 * SECONDS.hang_seconds
    finding = found[-1][1]
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H1", others(culprit), "medium")


@every_rank
def test_it_is_a_finding_at_the_gate_where_the_group_used_to_be_in_use_all_the_time(culprit: int) -> None:
    time, finding = said(evaluator(culprit, rate=5.0), 6.0)[0]
    assert (time, finding.level, finding.suspects) == (SECONDS.hang_seconds, "finding", others(culprit))


def test_a_group_that_is_used_now_and_then_may_have_such_a_wait() -> None:
    """Once in two seconds: not twenty such times have passed."""
    assert {finding.level for _, finding in said(evaluator(2, rate=0.5), 29.0)} == {"notice"}


@every_rank
def test_it_is_a_finding_soon_after_those_others_stand_still(culprit: int) -> None:
    found = said(evaluator(culprit, until=9.0), 20.0)
    first = next(time for time, finding in found if finding.level == "finding")
    assert 9.0 < first <= 9.0 + 0.5 * SECONDS.hang_seconds + 1.0
    assert found[-1][1].suspects == others(culprit)


@every_rank
def test_an_operation_that_nobody_waits_in_is_a_notice(culprit: int) -> None:
    found = said(voter(culprit), 29.0)
    assert {(finding.level, finding.code, finding.victims) for _, finding in found} == {("notice", "TW-H1", 0)}
    summary = found[-1][1].summary
    assert summary.startswith(f"rank {culprit} has entered all_reduce #1 of votes, and goes on elsewhere; ")


@every_rank
def test_what_is_said_of_it_after_six_gates_does_not_change(culprit: int) -> None:
    """Counts that were read one after the other look as if ranks had left the order of operations."""
    late = [finding for time, finding in said(voter(culprit), 60.0) if time >= 6 * SECONDS.hang_seconds]
    assert {(finding.code, *finding.suspects) for finding in late} == {("TW-H1", *others(culprit))}


def test_a_thread_that_goes_on_does_not_hide_that_training_hangs() -> None:
    """All ranks have a thread that uses a group of its own. One rank's training is stuck."""

    def at(time: float) -> Observation:
        ranks = []
        for n in range(WORLD):
            steps = member(900, idle=time) if n == 3 else member(901, waits=time)
            side = member(10 + int(10 * time), group="side", size=WORLD)
            ranks.append(rank(n, steps, side, setup_seconds=START + time))
        return observed(time, ranks)

    finding = only([finding for time, finding in said(at, 8.0) if time == 8.0])
    assert (finding.level, finding.code, finding.suspects) == ("finding", "TW-H1", [3])


@every_rank
@pytest.mark.parametrize("ahead", ["completed it", "is in the next"])
def test_a_wait_that_has_just_ended_is_no_hang_inside(culprit: int, ahead: str) -> None:
    """The counts of a rank that waited for long say for a moment that it still does."""

    def groups(n: int, age: float) -> list[Any]:
        if n == culprit:
            return [member(31, waits=age)]
        return [member(31, idle=0.1) if ahead == "completed it" else member(33, waits=0.1)]

    assert Analyzer(SECONDS).update(hung(groups)(20.0)).findings == []
