"""The analyzer on signals: whether they were for all ranks, for some, or came from the launcher."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from job.tests.analyzer.test_analyzer_interrupted import AGO, CLOSED, CTRL_C, asked_by, ended, found
from job.tests.support.analyzed import only, told
from job.tests.support.observations import WORLD, dead, member, rank
from job.tests.support.observed_jobs import every_rank, not_entering
from tensorwire_job.model import ASKED

if TYPE_CHECKING:
    from tensorwire_job.model import Finding

SOON = replace(ASKED, hang_seconds=10.0)


@every_rank
def test_who_lived_on_without_a_signal_that_most_got_leaves_it_open_whom_it_was_for(culprit: int) -> None:
    others = [n for n in range(WORLD) if n != culprit]

    def at(seconds: float, ago: float = AGO, way: str = "SIGINT", **more: Any) -> list[Finding]:
        """These got a signal; the other one came to its end so much later."""
        ranks = []
        for n in range(WORLD):
            state = dead(ago - seconds, CLOSED) | more if n == culprit else dead(ago, way) | asked_by(way, ago)
            ranks.append(rank(n, member(30, idle=ago), **state))
        return found(ranks)

    finding = only(at(0.3))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-LOST", [], "low")
    assert finding.sides == [others, [culprit]]
    assert f"rank {culprit} lived on for up to 300 ms without it" in finding.summary
    by_launcher = {"signal": "SIGTERM", "signal_seconds": AGO - 0.3, "exit_reason": "SIGTERM"}
    assert only(at(5.0, **by_launcher)).sides == finding.sides
    assert at(0.3, way="SIGTERM", **by_launcher) == [], "it was slow to note the same"
    assert at(0.3, exit_reason=CTRL_C) == [], "it got it too, and says so"
    assert at(0.04) == [], "it may have been about to get it"
    assert at(0.3, ago=1.0) == [], "others may speak yet"


@every_rank
def test_signals_that_come_to_one_node_after_another_are_for_all(culprit: int) -> None:
    """Its own node got them late, and it died of the others' end in between."""
    ranks = []
    for n in range(WORLD):
        ago = AGO - 0.5 if n == (culprit + 1) % WORLD else AGO
        state = dead(AGO - 0.3, CLOSED) if n == culprit else dead(ago) | asked_by("SIGTERM", ago)
        ranks.append(rank(n, member(30, idle=AGO), **state))
        ranks[-1].node = "node1" if n in (culprit, (culprit + 1) % WORLD) else "node0"
    assert found(ranks) == []


@every_rank
def test_a_rank_of_a_healthy_job_that_gets_the_signal_first_is_not_lost(culprit: int) -> None:
    """On a busy machine. No rank can have seen it end: it had not, when the others got theirs."""

    def states(n: int) -> dict[str, Any]:
        return dead(AGO - 0.2, "SIGTERM") | asked_by("SIGTERM", AGO if n == culprit else AGO - 0.1)

    assert ended(0.3, culprit, states) == []


@every_rank
def test_a_launcher_ends_the_last_one_by_sigterm_and_a_ctrl_c_that_comes_late_is_for_all(culprit: int) -> None:
    def at(name: str) -> list[Finding]:
        ranks = []
        for n in range(WORLD):
            asked, ends, signal = (AGO - 0.3, AGO - 15.0, name) if n == culprit else (AGO, AGO, "SIGINT")
            said = asked_by(signal, asked) | {"exit_seconds": ends}
            ranks.append(rank(n, member(30, idle=AGO), **(dead(ends, CTRL_C) | said)))
        return found(ranks)

    assert at("SIGINT") == []
    assert only(at("SIGTERM")).suspects == [n for n in range(WORLD) if n != culprit]


@every_rank
def test_who_got_a_signal_while_others_died_of_it_is_named_and_not_for_sure(culprit: int) -> None:
    """Half of the ranks: the other half may have been about to get it."""
    other, asked = (culprit + 1) % WORLD, {"signal": "SIGINT", "signal_seconds": AGO}
    ranks = []
    for n in range(WORLD):
        state = dead(AGO - 0.3, CLOSED)
        if n in (culprit, other):
            ended_at_once = dead(AGO, CTRL_C) | {"exit_kind": "interruption", "exit_seconds": AGO}
            state = asked | (ended_at_once if n == culprit else {})
        ranks.append(rank(n, member(30, idle=AGO), **state))
    finding = only(found(ranks))
    assert (finding.code, finding.suspects) == ("TW-LOST", sorted((culprit, other)))
    assert finding.confidence == "medium"


# Signals that are caught: the job goes on after them.


@every_rank
@pytest.mark.parametrize("asked", [WORLD, 1], ids=["all ranks", "one rank"])
def test_a_job_that_hangs_after_a_signal_that_it_caught_is_found(culprit: int, asked: int) -> None:
    """Ranks enter operations after it; those that were in one before may not have reacted yet, for a while."""

    def at(since_signal: float, waited: float) -> list[Finding]:
        groups, caught = not_entering(culprit), {"signal": "SIGTERM", "signal_seconds": since_signal}
        return found([rank(n, *groups(n, waited), **(caught if n < asked else {})) for n in range(WORLD)], SOON)

    after, before = at(15.0, 14.9), at(15.0, 15.1)
    assert told(after) == ("TW-H1", [culprit])
    assert [finding.suspects for finding in before] == ([] if asked == WORLD else [[culprit]])
    assert told(at(45.0, 45.1)) == ("TW-H1", [culprit]), "no launcher waits for so long"


@every_rank
@pytest.mark.parametrize("waited", [15.0, 0.3])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_who_had_outlived_a_signal_was_ended_by_the_later_one(culprit: int, waited: float, name: str) -> None:
    """One rank alone had caught SIGINT, long before another signal ended all."""
    at, reason = 20.0, "SIGTERM" if name == "SIGTERM" else CTRL_C
    caught = {"signal": "SIGINT", "signal_seconds": at + 17.0}

    def states(n: int) -> dict[str, Any]:
        return dead(at, reason) | asked_by(name, at) | (caught if n == culprit else {})

    findings = ended(waited, culprit, states, ago=at, thresholds=ASKED)
    if waited > 1.0:
        assert told(findings) == ("TW-H1", [culprit])
        assert only(findings).summary.startswith("when the job was ended (SIG")
    else:
        assert findings == []


@every_rank
def test_what_had_hung_after_a_caught_signal_is_found_once_the_launcher_has_killed_all(culprit: int) -> None:
    """The second SIGTERM was caught as well: the page has the first."""

    def at(waited: float) -> list[Finding]:
        caught = {"signal": "SIGTERM", "signal_seconds": 60.0}
        return ended(waited, culprit, lambda _: dead(30.0) | caught, ago=30.0, thresholds=ASKED)

    finding = only(at(29.0))
    assert (finding.code, finding.suspects) == ("TW-H1", [culprit])
    assert finding.summary.startswith("when the first rank ended: ")
    assert at(0.3) == [], "the job was well, and its scripts took no notice"


@every_rank
@pytest.mark.parametrize("trained", [25.0, 5.0])
def test_who_fails_by_itself_after_long_training_is_lost_and_the_signal_is_none_of_it(
    culprit: int, trained: float
) -> None:
    """Shortly after the signal the error may be how the script ends."""
    failed = {"exit_kind": "failure", "exit_seconds": AGO}
    ranks = []
    for n in range(WORLD):
        state = dead(AGO, "ValueError: loss") | failed if n == culprit else dead(AGO - 0.3, CLOSED)
        caught = {"signal": "SIGTERM", "signal_seconds": AGO + trained}
        ranks.append(rank(n, member(30, idle=AGO + 0.1), **(state | caught)))
    findings = found(ranks)
    assert [finding.suspects for finding in findings] == ([[culprit]] if trained > 10.0 else [])
