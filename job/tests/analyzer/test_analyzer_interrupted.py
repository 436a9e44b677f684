"""The analyzer on jobs that were told to end, and on ranks that failed and live on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from job.tests.support.analyzed import SECONDS, at_once, everything, only, told, watch
from job.tests.support.observations import WORLD, dead, member, observed, rank, set_process
from job.tests.support.observed_jobs import every_rank, healthy, hung, not_entering
from tensorwire_job.analyzer import Analyzer
from tensorwire_job.model import ASKED
from tensorwire_job.report.codes import advice

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire_job.model import Finding, Observation, Rank, Thresholds

CTRL_C = "KeyboardInterrupt"
CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"
AGO = 3600.0


def found(ranks: list[Rank], thresholds: Thresholds = SECONDS) -> list[Finding]:
    """By an analyzer that sees the job for the first time, long after."""
    return Analyzer(thresholds).update(observed(5000.0, ranks)).findings


def ended(
    waited: float,
    culprit: int,
    states: Callable[[int], dict[str, Any]],
    *,
    ago: float = AGO,
    thresholds: Thresholds = SECONDS,
    **more: Any,
) -> list[Finding]:
    """A job whose ranks had waited so long for one of them when it was ended."""
    groups = not_entering(culprit)
    return found([rank(n, *groups(n, ago + waited), **states(n), **more) for n in range(WORLD)], thresholds)


def by_ctrl_c(culprit: int) -> Callable[[int], dict[str, Any]]:
    """Only the rank that runs Python speaks of it; the launcher kills those that wait in gloo a moment later."""
    return lambda n: dead(AGO, CTRL_C) if n == culprit else dead(AGO + 0.04)


def asked_by(name: str, ago: float = AGO) -> dict[str, Any]:
    """What the probe notes of a signal that a rank ends of."""
    return {"exit_kind": "interruption", "signal": name, "signal_seconds": ago, "exit_seconds": ago}


def by_signal(name: str) -> Callable[[int], dict[str, Any]]:
    """The probe has seen it come in all."""
    return lambda n: dead(AGO - 0.01 * n, name) | asked_by(name)


WAYS = {
    "Ctrl-C": by_ctrl_c,
    "SIGINT in all": lambda culprit: by_signal("SIGINT"),
    "scancel": lambda culprit: by_signal("SIGTERM"),
    "closed terminal": lambda culprit: by_signal("SIGHUP"),
}


@every_rank
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_the_ranks_had_waited_in_decides(culprit: int, way: Any) -> None:
    finding = only(ended(20.0, culprit, way(culprit)))
    assert (finding.code, finding.suspects, finding.victims) == ("TW-H1", [culprit], 3)
    assert finding.summary.startswith("when the job was ended (")
    assert finding.since == 5000.0 - AGO - 20.0, "the beginning of the wait"
    assert "in state" not in " ".join(finding.evidence), "it is not known any more"
    assert ended(0.3, culprit, way(culprit)) == [], "the job was well"


@every_rank
def test_peers_whose_operation_fails_with_the_connection_had_waited_in_it(culprit: int) -> None:
    """torch counts it as completed at that moment."""

    def at(waited: float) -> list[Finding]:
        ranks = []
        for n in range(WORLD):
            state = dead(AGO, CTRL_C) if n == culprit else dead(AGO - 0.2, CLOSED)
            ranks.append(
                rank(n, member(30, idle=AGO + waited) if n == culprit else member(31, idle=AGO - 0.1), **state)
            )
        return found(ranks)

    assert told(at(20.0), "victims") == ("TW-H1", [culprit], 3)
    assert at(0.3) == []


@every_rank
def test_who_had_never_been_in_the_group_is_missing_too(culprit: int) -> None:
    """The first operation of a fresh group of a mesh. torch counts it as completed once it has failed."""
    partner = culprit ^ 1

    def at(waited: float) -> list[Finding]:
        ranks = []
        for n in range(WORLD):
            state = dead(AGO, CTRL_C) if n == culprit else dead(AGO - 0.5, CLOSED)
            pair = min(n, n ^ 1), max(n, n ^ 1)
            groups = [member(100, idle=AGO + waited)]
            if n == culprit:
                groups.append(member(0, idle=None, group=f"tp{pair}", size=2, known=False, members=pair))
            else:
                late = AGO - 0.4 if n == partner else AGO + waited
                groups.append(member(1, idle=late, group=f"tp{pair}", size=2, members=pair))
            if n not in (culprit, partner):
                groups[0] = member(101, idle=AGO - 0.4)
            ranks.append(rank(n, *groups, **state, setup="initialized", setup_seconds=AGO + waited + 5.0))
        return found(ranks)

    assert [(finding.code, finding.suspects) for finding in at(20.0)] == [("TW-H1", [culprit])]
    assert at(0.3) == []


@every_rank
def test_a_wait_of_a_few_seconds_is_none_of_a_job_that_hangs(culprit: int) -> None:
    states = by_ctrl_c(culprit)
    assert only(ended(11.0, culprit, states, thresholds=ASKED)).suspects == [culprit]
    assert ended(6.0, culprit, states, thresholds=ASKED) == []


@every_rank
@pytest.mark.parametrize(("waited", "code"), [(20.0, "TW-H1"), (0.3, "TW-LOST")])
def test_of_ranks_that_do_not_end_of_it_it_counts_whether_they_had_waited(
    culprit: int, waited: float, code: str
) -> None:
    findings = ended(waited, culprit, lambda n: dead(AGO, CTRL_C) if n == culprit else {})
    assert told(findings, "victims") == (code, [culprit], 3)


@every_rank
def test_who_had_called_something_else_is_named(culprit: int) -> None:
    ranks = [
        rank(n, member(31, waits=AGO + 20.0, name="broadcast" if n == culprit else "all_reduce"), **by_ctrl_c(0)(n))
        for n in range(WORLD)
    ]
    assert told(found(ranks)) == ("TW-H2", [culprit])


def test_a_declared_phase_is_no_finding_after_the_end_either() -> None:
    notice = only(ended(20.0, 0, by_ctrl_c(0), phase="checkpoint"))
    assert notice.level == "notice"


@every_rank
@pytest.mark.parametrize("reason", ["ValueError: loss is NaN", "", "exit 1"], ids=["exception", "killed", "exit"])
def test_a_rank_that_went_before_is_lost_though_the_others_were_ended(culprit: int, reason: str) -> None:
    """A launcher sends SIGTERM to the others once one has failed."""
    states = by_signal("SIGTERM")
    finding = only(ended(4.0, culprit, lambda n: dead(AGO + 0.06, reason) if n == culprit else states(n)))
    assert (finding.code, finding.suspects) == ("TW-LOST", [culprit])


@every_rank
@pytest.mark.parametrize("others", ["lose the connection", "are ended by the launcher", "wait on"])
def test_one_rank_that_is_ended_alone_is_lost(culprit: int, others: str) -> None:
    """By a memory watcher, or with its node: no person has ended the job."""

    def states(n: int) -> dict[str, Any]:
        if n == culprit:
            return dead(AGO, "SIGTERM") | asked_by("SIGTERM")
        if others == "lose the connection":
            return dead(AGO - 0.3, CLOSED)
        if others == "are ended by the launcher":
            return dead(AGO - 0.3, "SIGTERM") | asked_by("SIGTERM", AGO - 0.3)
        return {}

    assert told(ended(0.3, culprit, states)) == ("TW-LOST", [culprit])


@every_rank
@pytest.mark.parametrize("waited", [20.0, 0.3])
def test_ranks_that_do_not_react_are_judged_at_once(culprit: int, waited: float) -> None:
    """Ranks that wait in gloo do not react, until the launcher kills them."""
    asked, patient = {"signal": "SIGINT", "signal_seconds": 4.0}, replace(SECONDS, hang_seconds=100.0)
    findings = ended(waited, culprit, lambda _: asked, ago=4.0, thresholds=patient)
    assert [(finding.code, finding.suspects) for finding in findings] == ([("TW-H1", [culprit])] if waited > 1 else [])


def test_a_job_that_goes_on_after_a_signal_is_well() -> None:
    def at(time: float) -> Observation:
        seen = healthy(time)
        for one in seen.ranks.values():
            one.process.signal, one.process.signal_seconds = "SIGINT", time
        return seen

    assert everything(at, 60.0) == []


@every_rank
def test_an_error_that_comes_of_ctrl_c_is_not_to_blame(culprit: int) -> None:
    states = by_ctrl_c(culprit)
    late = (culprit + 1) % WORLD
    at = {late: dead(AGO - 1.0, "ValueError: I/O operation on closed file")}
    assert told(ended(20.0, culprit, lambda n: at.get(n) or states(n))) == ("TW-H1", [culprit])


@every_rank
def test_what_was_found_while_it_ran_stays(culprit: int) -> None:
    base = hung(not_entering(culprit))

    def at(time: float) -> Observation:
        seen = base(time)
        if time >= 12.0:
            for n, one in seen.ranks.items():
                set_process(one, dead(time - 12.0, CTRL_C) if n == culprit else dead(time - 11.96))
        return seen

    told = [(time, finding) for time, analysis in watch(at, 40.0) for finding in analysis.findings]
    assert {(finding.code, *finding.suspects, finding.time) for _, finding in told} == {("TW-H1", culprit, 8.0)}
    assert [time for time, _ in told] == [float(time) for time in range(8, 41)]


def test_a_job_that_is_well_may_be_ended_at_any_time() -> None:
    def at(time: float) -> Observation:
        seen = healthy(min(time, 20.0))
        if time >= 20.0:
            for n, one in seen.ranks.items():
                one.process_groups = [
                    replace(g, idle_seconds=(g.idle_seconds or 0.0) + time - 20.0) for g in one.process_groups
                ]
                set_process(one, dead(time - 20.0 + 0.01 * n, CTRL_C if n != 2 else ""))
        return replace(seen, time=time)

    assert everything(at, 60.0) == []


# Ranks that failed and live on.

ERROR = "ValueError: loss is NaN"


def lives_on(culprit: int, *, waits: float | None, **more: Any) -> list[Rank]:
    return [
        rank(n, member(30, idle=9.0), exit_reason=ERROR, exit_kind="failure", **more)
        if n == culprit
        else rank(n, member(31, waits=waits))
        for n in range(WORLD)
    ]


@every_rank
def test_who_has_said_its_error_and_lives_on_is_named_with_it_at_once(culprit: int) -> None:
    analysis = Analyzer(SECONDS).update(observed(50.0, lives_on(culprit, waits=2.9, exit_seconds=3.0)))
    finding = only(analysis.findings)
    assert (finding.code, finding.suspects, finding.victims) == ("TW-LOST", [culprit], 3)
    assert finding.summary.startswith(f"rank {culprit} failed with {ERROR}, and its process lives on")
    assert analysis.stacks_of == [culprit]


@every_rank
def test_the_gate_of_lost_processes_is_not_waited_for_where_one_lives_on(culprit: int) -> None:
    analyzer = Analyzer(replace(SECONDS, lost_seconds=60.0))

    def at(seconds: float) -> list[Finding]:
        ranks = lives_on(culprit, waits=max(seconds - 0.1, 0.0), exit_seconds=seconds)
        return analyzer.update(observed(50.0 + seconds, ranks)).findings

    assert at(0.5) == [], "it may end in a moment, and be started again"
    assert only(at(3.0)).suspects == [culprit]
    failed = dead(9.0, ERROR) | {"exit_kind": "failure"}
    over = [rank(n, member(30, idle=9.0), **(failed if n == culprit else {})) for n in range(WORLD)]
    assert only(analyzer.update(observed(59.0, over)).findings).suspects == [culprit], "the finding stays"


def test_a_process_that_is_gone_is_not_asked_for_its_stack() -> None:
    ranks = [rank(n, member(30), **(dead(9.0) if n == 2 else {})) for n in range(WORLD)]
    analysis = Analyzer(SECONDS).update(observed(50.0, ranks))
    finding = only(analysis.findings)
    assert (finding.suspects, finding.ended, analysis.stacks_of) == ([2], [2], [])
    assert finding.evidence[0].endswith("ago, after all_reduce #30 of world"), "what the stack would have told"


def test_what_to_do_about_a_hang_fits_suspects_that_are_gone() -> None:
    gone = only(ended(20.0, 1, by_ctrl_c(1)))
    lives = only(ended(20.0, 1, lambda _: {}, ago=0.0))
    assert (gone.code, gone.ended, lives.code, lives.ended) == ("TW-H1", [1], "TW-H1", [])
    assert advice(lives).startswith("Read the suspect's stack")
    assert advice(gone).startswith("The suspect's process is gone, and its stack with it.")
    assert advice(replace(gone, stacks={1: "in a lock"})) == advice(lives), "it was read while the process lived"


def test_where_the_age_of_its_words_is_not_known_it_is_named_a_moment_later() -> None:
    analyzer = Analyzer(SECONDS)
    assert analyzer.update(observed(50.0, lives_on(1, waits=0.5))).findings == []
    assert only(analyzer.update(observed(52.0, lives_on(1, waits=2.5))).findings).suspects == [1]


def test_who_goes_on_after_an_error_is_well() -> None:
    def at(time: float) -> Observation:
        seen = healthy(time)
        seen.ranks[2].process.exit_reason = ERROR
        return seen

    assert everything(at, 60.0) == []


@pytest.mark.parametrize("world", [2, WORLD])
def test_all_ranks_that_fail_alike_are_one_finding(world: int) -> None:
    ranks = [rank(n, **dead(60.0 - 3 * n, f"ImportError: no module named foo{n}"), world=world) for n in range(world)]
    finding = only(at_once(ranks, world=world))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-LOST", list(range(world)), "medium")
    what = "ImportError: no module named foo0 (rank 1: ImportError: no module named foo1)"
    assert finding.summary == f"all {world} ranks failed with {what}"


def test_a_thousand_ranks_that_fail_alike_take_few_lines() -> None:
    ranks = [rank(n, **dead(60.0, ERROR), world=1024) for n in range(1024)]
    finding = only(at_once(ranks, world=1024))
    assert finding.summary == f"all 1024 ranks failed with {ERROR}"
    assert len(finding.evidence) == len(finding.suspects) == 5


def test_some_that_fail_alike_are_named_and_those_that_follow_are_not() -> None:
    assert only(found([rank(n, **dead(60.0 - n, ERROR if n else "")) for n in range(WORLD)])).suspects == [0]
    finding = only(found([rank(n, **dead(60.0 - n, ERROR if n < 2 else CLOSED)) for n in range(WORLD)]))
    assert finding.suspects == [0, 1]
    assert finding.summary == f"ranks 0-1 failed with {ERROR}; ranks 2-3 followed"


@every_rank
def test_who_got_the_signal_and_still_waits_is_named_as_it_will_be_once_it_is_dead(culprit: int) -> None:
    """Two got SIGINT. One ran Python and ended; the other one waits in gloo, which does not react."""
    other = (culprit + 1) % WORLD
    asked = {"signal": "SIGINT", "signal_seconds": AGO, "exit_seconds": AGO}

    def state(n: int, *, is_over: bool) -> dict[str, Any]:
        own = asked if n in (culprit, other) else {}
        if n == culprit:
            return dead(AGO, CTRL_C) | own | {"exit_kind": "interruption"}
        return own | (dead(10.0) | ({"exit_seconds": 10.0} if own else {}) if is_over else {})

    def at(*, is_over: bool) -> Finding:
        groups = [member(30, idle=AGO) if n == culprit else member(31, waits=AGO) for n in range(WORLD)]
        return only(found([rank(n, groups[n], **state(n, is_over=is_over)) for n in range(WORLD)]))

    live, over = at(is_over=False), at(is_over=True)
    assert (live.code, live.suspects) == ("TW-LOST", sorted((culprit, other)))
    assert (over.code, over.suspects) == (live.code, live.suspects)
    assert f"rank {other} got SIGINT and has completed nothing since" in live.summary


@every_rank
def test_who_is_interrupted_once_all_others_have_come_to_the_end_was_the_one_that_had_not(culprit: int) -> None:
    """The same is said while it lives."""

    def at(state: dict[str, Any]) -> Finding:
        others = dead(AGO + 100.0, "exit 0") | {"exit_kind": "end"}
        ranks = [
            rank(n, member(31, idle=AGO + 100.0), setup="initialized", **(state if n == culprit else others))
            for n in range(WORLD)
        ]
        return only(found(ranks))

    live = at({})
    over = at(dead(AGO, CTRL_C) | {"exit_kind": "interruption", "signal": "SIGINT", "signal_seconds": AGO})
    assert (live.code, live.suspects) == (over.code, over.suspects) == ("TW-H1", [culprit])


@every_rank
def test_who_had_failed_and_lived_on_until_the_job_was_ended_is_lost(culprit: int) -> None:
    """A thread kept its process alive; that it got the signal too does not matter."""
    states, words = by_signal("SIGTERM"), {"exit_reason": "ValueError: no data", "exit_kind": "failure"}
    failed = words | {"exit_seconds": AGO + 60.0}
    findings = ended(60.0, culprit, lambda n: states(n) | (failed if n == culprit else {}))
    assert told(findings, "confidence") == ("TW-LOST", [culprit], "high")


@every_rank
def test_who_was_silent_while_the_others_waited_until_the_job_was_ended_had_not_gone(culprit: int) -> None:
    """It was stopped, or in a debugger: the others would have lost its connections."""

    def at(waited: float) -> Finding:
        states = by_signal("SIGTERM")
        return only(ended(waited, culprit, lambda n: dead(AGO + waited) if n == culprit else states(n)))

    finding = at(60.0)
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H1", [culprit], "medium")
    assert any("it was stopped, or held the GIL" in fact for fact in finding.evidence)
    assert (at(2.0).code, at(2.0).suspects) == ("TW-LOST", [culprit])


@every_rank
def test_who_had_come_to_its_end_and_lived_on_until_the_job_was_ended_is_named_as_while_it_lived(culprit: int) -> None:
    """A thread keeps its process, which notes the signal long after its last words."""

    def at(states: Callable[[int], dict[str, Any]], ago: float) -> Finding:
        words = {"exit_reason": "exit 0", "exit_kind": "end", "exit_seconds": ago + 20.0}
        return only(ended(20.0, culprit, lambda n: states(n) | (words if n == culprit else {}), ago=ago))

    over = by_signal("SIGTERM")
    live = at(lambda _: {}, 0.0)
    after = at(lambda n: over(n) | ({"gone_seconds": AGO + 20.0} if n == culprit else {}), AGO)
    assert (live.code, live.suspects) == (after.code, after.suspects) == ("TW-H1", [culprit])


@every_rank
def test_an_operation_that_a_stuck_page_has_as_open_was_over_where_the_others_have_passed_it(culprit: int) -> None:
    """It was written last while that operation lasted; the rank holds Python's lock since, in something else."""
    ranks = []
    for n in range(WORLD):
        group = member(25, waits=AGO + 20.0) if n == culprit else member(31, idle=AGO)
        more = {"heartbeat_seconds": AGO + 20.0 if n == culprit else AGO}
        ranks.append(rank(n, group, **(by_signal("SIGTERM")(n) | {"setup_seconds": AGO + 90.0} | more)))
    assert told(found(ranks)) == ("TW-H1", [culprit])
