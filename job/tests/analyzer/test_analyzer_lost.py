"""The analyzer on lost processes: the first to die, and ends that are no trouble."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from job.tests.support.analyzed import SECONDS, at_once, everything, only, watch
from job.tests.support.observations import WORLD, dead, member, observed, rank
from job.tests.support.observed_jobs import every_rank
from tensorwire_job.analyzer import Analyzer
from tensorwire_job.model import REPLACED

if TYPE_CHECKING:
    from tensorwire_job.model import Finding, Observation, Rank

SECONDARY = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"


def ended(states: dict[int, dict[str, Any]], *, waits: float | None = None, time: float = 50.0) -> list[Finding]:
    """What is found where these ranks are gone and the others wait, or do not."""
    ranks = []
    for n in range(WORLD):
        group = member(31, waits=waits) if n not in states else member(30)
        ranks.append(rank(n, group, **states.get(n, {})))
    return at_once(ranks, time)


@every_rank
@pytest.mark.parametrize("exit_reason", ["", "exit 1", "ValueError: loss is NaN"])
def test_the_first_to_die_is_named_not_those_who_follow(culprit: int, exit_reason: str) -> None:
    states = {n: dead(4.0, SECONDARY) for n in range(WORLD)}
    states[culprit] = dead(4.3, exit_reason)
    (finding,) = ended(states)
    assert (finding.code, finding.suspects, finding.victims) == ("TW-LOST", [culprit], 3)
    how = f"ended ({exit_reason})" if exit_reason else "ended without an exit reason"
    assert finding.summary.startswith(f"rank {culprit} {how}")


def test_a_rank_that_left_before_the_first_failed_did_not_follow_it() -> None:
    states = {0: dead(9.0, "exit 0"), 1: dead(4.3, "exit 1"), 2: dead(4.0, SECONDARY), 3: dead(3.0, "exit 0")}
    (finding,) = ended(states)
    assert (finding.suspects, finding.victims) == ([1], 2)
    assert finding.summary.endswith("; ranks 2-3 followed")


@every_rank
def test_a_crash_is_told_and_names_nobody_else(culprit: int) -> None:
    """The rank that crashed first is named; the words of a crash make no rank a witness of what it waited in."""
    states = {n: dead(4.0, SECONDARY) for n in range(WORLD)}
    states[culprit] = dead(4.3, "killed by SIGSEGV") | {"life": "lost", "exit_kind": "crash"}
    (finding,) = ended(states)
    assert (finding.code, finding.suspects, finding.victims) == ("TW-LOST", [culprit], 3)
    assert finding.summary.startswith(f"rank {culprit} was killed by SIGSEGV")
    silent = {n: dead(4.0) for n in range(WORLD)}
    crashed = {n: state | {"exit_reason": "killed by SIGABRT", "exit_kind": "crash"} for n, state in silent.items()}
    assert [each.code for each in ended(crashed)] == [each.code for each in ended(silent)]


@every_rank
def test_a_connection_error_is_a_secondary_failure_though_its_heartbeat_was_later(culprit: int) -> None:
    """Last signs of life are known to a heartbeat: who speaks of a lost connection did not lose it."""
    states = {n: dead(4.02, SECONDARY) for n in range(WORLD)}
    states[culprit] = dead(4.0)
    (finding,) = ended(states)
    assert finding.suspects == [culprit]


@every_rank
def test_who_runs_another_program_is_lost_as_one_who_left_early(culprit: int) -> None:
    replaced = dead(6.0, REPLACED) | {"exit_kind": "end", "state": "S"}
    (finding,) = ended({culprit: replaced}, waits=5.0)
    assert (finding.code, finding.suspects, finding.victims) == ("TW-LOST", [culprit], 3)
    assert finding.summary == f"rank {culprit} runs another program; 3 ranks wait"
    failed = {n: dead(4.0, SECONDARY) for n in range(WORLD)} | {culprit: replaced}
    ranks = [rank(n, member(30 if n == culprit else 31, waits=None, idle=4.0), **failed[n]) for n in range(WORLD)]
    assert at_once(ranks)[0].suspects == [culprit]


def test_peers_that_wait_are_victims() -> None:
    (finding,) = ended({2: dead(5.0)}, waits=4.9)
    assert (finding.code, finding.suspects, finding.victims) == ("TW-LOST", [2], 3)
    assert "3 ranks wait" in finding.summary


def test_where_times_do_not_tell_all_that_died_at_once_are_named() -> None:
    (finding,) = ended({1: dead(5.0), 3: dead(5.0)}, waits=4.0)
    assert finding.suspects == [1, 3]
    assert finding.confidence == "medium"


def test_nobody_is_named_where_all_lose_what_is_no_rank() -> None:
    """The process that hosts the store has gone."""
    (finding,) = ended({n: dead(5.0 + n / 100, "DistNetworkError: Broken pipe") for n in range(WORLD)})
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-LOST", [], "low")
    assert sorted(finding.sides) == [[n] for n in range(WORLD)]


def test_who_leaves_well_or_for_another_program_while_nobody_waits_is_not_lost() -> None:
    assert not ended({1: dead(30.0, "exit 0")})
    assert not ended({n: dead(6.0, REPLACED) | {"exit_kind": "end"} for n in range(WORLD)})
    assert not ended({n: dead(10.0 + n, "exit 0") for n in range(WORLD)})


@every_rank
def test_who_leaves_with_code_0_while_others_wait_is_lost(culprit: int) -> None:
    (finding,) = ended({culprit: dead(30.0, "exit 0")}, waits=29.0)
    assert (finding.code, finding.suspects) == ("TW-LOST", [culprit])
    assert "exit 0" in finding.summary


def test_who_leaves_early_is_lost_though_only_the_others_fail() -> None:
    states = {n: dead(4.0, SECONDARY) for n in range(WORLD)}
    states[1] = dead(6.0, "exit 0")
    ranks = [rank(n, member(30 if n == 1 else 31, waits=None if n == 1 else 5.0), **states[n]) for n in range(WORLD)]
    (finding,) = at_once(ranks)
    assert finding.suspects == [1]


def test_an_elastic_restart_is_no_loss() -> None:
    """Rank 2 dies, the launcher ends the others, and within the time a new generation works."""

    def at(time: float) -> Observation:
        if time < 5:
            return observed(time, [rank(n, member(int(10 * time) + 1)) for n in range(WORLD)])
        if time < 6.5:
            gone = {n: dead(time - (4.9 if n == 2 else 5.0)) for n in range(WORLD)}
            return observed(time, [rank(n, member(50), **gone[n]) for n in range(WORLD)])
        new = [rank(n, member(int(10 * (time - 6)) + 1, group="w1"), generation=1) for n in range(3)]
        old = [rank(3, member(50), **dead(time - 5.0))]
        return observed(time, [*new, *old] if time < 9 else [*new, rank(3, member(40, group="w1"), generation=1)])

    assert not everything(at, 20, step=0.5)


def test_generations_are_never_mixed() -> None:
    """A hang of the first generation is no finding about the second."""
    analyzer = Analyzer(SECONDS)
    first = [rank(n, member(31 - (n == 2), waits=None if n == 2 else 9.0)) for n in range(WORLD)]
    assert analyzer.update(observed(10.0, first)).findings
    second = [rank(n, member(1), generation=1) for n in range(2)]
    assert not analyzer.update(observed(11.0, [*second, *first[2:]])).findings


def test_a_silent_agent_is_no_loss() -> None:
    ranks = [rank(n, member(31), **(dead(9.0) if n > 1 else {})) for n in range(WORLD)]
    for number in (2, 3):
        ranks[number].node = "far"
    assert not at_once(ranks, silent_nodes=["far"])


def test_nothing_before_a_lost_rank_had_time_to_come_back() -> None:
    def at(time: float) -> Observation:
        gone = dead(time - 5) if time > 5 else {}
        return observed(time, [rank(n, member(30), **(gone if n == 1 else {})) for n in range(4)])

    for time, analysis in watch(at, 12):
        assert bool(analysis.findings) == (time - 5 >= SECONDS.lost_seconds)


@every_rank
def test_who_crashed_may_be_a_victim_of_what_another_called(culprit: int) -> None:
    """gloo aborts the receiver of a message that is too large. A rank that the system killed is lost for certain."""

    def at(reason: str, kind: str) -> Finding:
        others = {n: dead(8.0, SECONDARY) for n in range(WORLD)}
        return only(ended(others | {culprit: dead(9.0, reason) | {"exit_kind": kind}}))

    aborted, killed = at("killed by SIGABRT", "crash"), at("", "")
    assert (aborted.code, aborted.suspects, aborted.confidence) == ("TW-LOST", [culprit], "medium")
    assert "what is known of the calls agrees" in aborted.evidence[-1]
    assert killed.confidence == "high"


@every_rank
@pytest.mark.parametrize("aborted_by", [0, 1], ids=["itself", "its victim"])
def test_what_ranks_had_called_names_the_culprit_whoever_was_aborted(culprit: int, aborted_by: int) -> None:
    aborted = (culprit + aborted_by) % WORLD
    gone = dead(9.0, "killed by SIGABRT") | {"exit_kind": "crash"}
    ranks = [
        rank(
            n,
            member(31, waits=9.2, dtype="bfloat16" if n == culprit else "float32"),
            **(gone if n == aborted else dead(8.9, SECONDARY)),
        )
        for n in range(WORLD)
    ]
    (finding,) = at_once(ranks)
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H2", [culprit], "high")
    assert any(f"rank {aborted} (pid" in fact and "SIGABRT" in fact for fact in finding.evidence)


@every_rank
def test_who_was_aborted_in_a_message_and_the_others_are_sides(culprit: int) -> None:
    gone = dead(9.0, "killed by SIGABRT") | {"exit_kind": "crash", "activity": "recv from any source"}
    (finding,) = ended({n: dead(8.0, SECONDARY) for n in range(WORLD)} | {culprit: gone})
    others = [n for n in range(WORLD) if n != culprit]
    assert (finding.code, finding.suspects, finding.sides) == ("TW-H2", [], [[culprit], others])


@every_rank
@pytest.mark.parametrize("call", ["all_to_all", "all_to_all_single", "scatter"])
def test_who_was_aborted_where_peers_say_how_much_they_send_is_not_named(culprit: int, call: str) -> None:
    """The sizes of one rank's call say nothing of those of another: the calls agree, whoever is wrong."""
    gone = dead(9.0, "killed by SIGABRT") | {"exit_kind": "crash"}
    ranks = [
        rank(
            n, member(31, waits=9.2, name=call, known=n == culprit), **(gone if n == culprit else dead(8.9, SECONDARY))
        )
        for n in range(WORLD)
    ]
    (finding,) = at_once(ranks)
    others = [n for n in range(WORLD) if n != culprit]
    assert (finding.code, finding.suspects, finding.sides) == ("TW-H2", [], [[culprit], others])
    assert finding.confidence == "low"
    assert f"rank {culprit} aborted in {call}, as gloo does on more data than it expects" in finding.summary


def test_of_two_ranks_one_that_ended_well_is_no_surer_to_blame_than_one_that_waits_for_it() -> None:
    ranks = [
        rank(0, member(30, size=2), world=2, **dead(9.0, "exit 0")),
        rank(1, member(31, size=2, waits=9.0), world=2),
    ]
    (finding,) = at_once(ranks, world=2)
    assert (finding.code, finding.suspects, finding.sides) == ("TW-H2", [], [[0], [1]])


@every_rank
@pytest.mark.parametrize("exit_reason", ["exit", "exit 0"])
def test_who_is_at_its_end_waits_in_nothing_whatever_its_last_counts_say(culprit: int, exit_reason: str) -> None:
    """A loaded machine may take seconds to end a process, and the counts of that rank are not read meanwhile."""
    at_the_end = {"exit_reason": exit_reason, "exit_kind": "end"}
    ranks = [
        rank(n, member(30, waits=90.0, known=False), **at_the_end) if n == culprit else rank(n, member(30, idle=90.0))
        for n in range(WORLD)
    ]
    assert at_once(ranks) == []


@every_rank
def test_who_does_nothing_once_all_others_have_come_to_their_end_is_named(culprit: int) -> None:
    def at(idle: float, activity: str = "") -> list[Finding]:
        own = {"setup": "initialized", "setup_seconds": 90.0, "activity": activity}
        ranks = [
            rank(n, member(30, idle=idle), **(own if n == culprit else dead(idle, "exit 0"))) for n in range(WORLD)
        ]
        return at_once(ranks, 500.0)

    gate = SECONDS.hang_seconds
    assert [(finding.code, finding.suspects) for finding in at(gate + 1.0)] == [("TW-H1", [culprit])]
    assert at(gate - 1.0) == at(gate + 1.0, "torch.save") == []


@every_rank
def test_who_waits_for_most_others_that_have_ended_well_has_called_once_too_often(culprit: int) -> None:
    states = {n: dead(9.0, "exit 0") | {"exit_kind": "end"} for n in range(WORLD) if n != culprit}
    (finding,) = ended(states, waits=9.0)
    assert (finding.code, finding.suspects) == ("TW-H2", [culprit])


def _set_up(culprit: int, exit_reason: str, setup: str) -> list[Rank]:
    """Ranks that set up the job, of which one gave up, and the launcher ended the others."""
    states = {n: dead(4.0, "SIGTERM") | {"exit_kind": "interruption", "setup": "in init"} for n in range(WORLD)}
    states[culprit] = dead(4.5, exit_reason) | {"setup": setup}
    return [rank(n, setup_seconds=5.0, **states[n]) for n in range(WORLD)]


@every_rank
@pytest.mark.parametrize("setup", ["in init", "before init"])  # it may fail before its page is written
def test_the_first_that_gives_up_while_all_set_up_the_job_is_not_to_blame(culprit: int, setup: str) -> None:
    """As where a file of an earlier job has addresses at which none listens."""
    words = "RuntimeError: Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Connection refused"
    ranks = _set_up(culprit, words, setup)
    ranks[culprit - 1].setup = setup  # it comes late
    (finding,) = at_once(ranks)
    assert (finding.code, finding.suspects, finding.sides, finding.confidence) == ("TW-LOST", [], [], "low")
    assert f"rank {culprit} ended" in finding.summary


@pytest.mark.parametrize("generation", [0, 2])
def test_several_that_fail_at_once_while_all_set_up_the_job_are_one_finding_and_no_sides(generation: int) -> None:
    why = "RuntimeError: Gloo connectFullMesh failed with timed out connecting: remote=[127.0.0.1]:4485${}"
    states = {n: dead(4.0 if n == 0 else 7.0, why.format(n)) | {"setup": "in init"} for n in range(WORLD)}
    states[2]["setup"] = "before init"
    (finding,) = at_once([rank(n, generation=generation, setup_seconds=9.0, **states[n]) for n in states])
    assert (finding.code, finding.suspects, finding.sides, finding.confidence) == ("TW-LOST", [], [], "low")
    assert finding.summary == f"ranks 1-3 failed with {why.format(1)} (rank 2: {why.format(2)}); rank 0 followed"
    assert any("this is restart 2 of the job" in fact for fact in finding.evidence) == bool(generation)


def test_a_rank_that_lost_a_connection_of_its_own_before_it_set_up_the_job_is_to_blame() -> None:
    (finding,) = at_once(_set_up(2, "ConnectionError: dataset server: Connection refused", "before init"))
    assert (finding.code, finding.suspects) == ("TW-LOST", [2])
