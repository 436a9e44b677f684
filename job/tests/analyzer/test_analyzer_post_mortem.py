"""The analyzer on hangs that are over: whom those that ran out of time, or were ended together, had waited for."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from job.tests.support.analyzed import at_once, only, told, watch
from job.tests.support.observations import WORLD, dead, member, observed, rank, ring, set_process
from job.tests.support.observed_jobs import all_in, every_rank, hung, not_entering
from tensorwire_job.model import Call, ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire_job.model import Finding, Observation

TIMED_OUT = "RuntimeError: Timed out waiting 8000ms for recv operation to complete"
CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"
STOPPED = {"life": "stopped", "state": "T"}
WAITED = 8.0


def failed(entered: int = 21, *, before: float = 4.0, **more: Any) -> ProcessGroup:
    """A rank whose last operation failed so long ago: torch counts it as completed."""
    return replace(member(entered, **more), idle_seconds=before + 0.01)


def ended(states: dict[int, dict[str, Any]], groups: dict[int, list[ProcessGroup]] | None = None) -> list[Finding]:
    """What is found where ranks gave up 4 s ago, in what `groups` says, else all in one operation."""
    ranks = []
    for number in range(WORLD):
        state = states.get(number, dead(4.0 - 0.03 * number, TIMED_OUT))
        gave_up = bool(state.get("exit_reason"))
        entered = (groups or {}).get(number) or [failed() if gave_up else member(21, waits=WAITED + 4.0)]
        ranks.append(rank(number, *entered, **state))
    return at_once(ranks)


# Not entered.


@every_rank
def test_who_was_not_there_when_the_others_timed_out_is_named_though_it_died_last(culprit: int) -> None:
    finding = only(ended({culprit: dead(3.0)}, {culprit: [member(20)]}))
    assert (finding.code, finding.suspects) == ("TW-H1", [culprit])
    assert "in all_reduce #21" in finding.evidence[0]
    assert TIMED_OUT in finding.evidence[-1]


@every_rank
def test_of_a_first_operation_that_nobody_knows_the_age_of_no_endless_wait_is_told(culprit: int) -> None:
    states = {number: dead(4.0, TIMED_OUT) for number in range(WORLD) if number != culprit} | {culprit: {}}
    never = ProcessGroup("world", "world", WORLD, 0, 0, None, None, None)
    groups = {number: [failed(1)] for number in range(WORLD) if number != culprit} | {culprit: [never]}
    finding = only(ended(states, groups))
    assert (finding.code, finding.suspects) == ("TW-H1", [culprit])
    assert finding.since is not None
    assert 0.0 < finding.since < 50.0
    assert not any("unknown time" in fact for fact in finding.evidence)


@every_rank
def test_it_is_told_for_how_long_they_waited_where_an_operation_that_failed_stays_open(culprit: int) -> None:
    at = {number: [member(21, waits=WAITED + 4.0)] for number in range(WORLD)} | {culprit: [member(20)]}
    finding = only(ended({number: dead(4.0, TIMED_OUT) for number in range(WORLD)} | {culprit: dead(3.0)}, at))
    assert (finding.code, finding.suspects) == ("TW-H1", [culprit])
    assert "in all_reduce #21 of world for rank" in finding.evidence[0]
    assert "the longest for 8.0 s" in finding.evidence[0]


@every_rank
def test_who_was_not_there_is_named_where_the_hung_job_was_ended(culprit: int) -> None:
    at = {number: member(21, waits=60.0) for number in range(WORLD)} | {culprit: member(20)}
    assert told(at_once([rank(number, at[number], **dead(4.0)) for number in range(WORLD)])) == ("TW-H1", [culprit])


@every_rank
def test_ranks_had_waited_for_the_root_alone_where_their_history_knows_it(culprit: int) -> None:
    """A page forgets the root of an operation that counts as completed."""
    waiting = (culprit + 1) % WORLD
    entered = failed(name="broadcast", root=-1)
    assert entered.operation is not None
    history = [Call(entered.id, replace(entered.operation, root=culprit))]
    ranks = [rank(number, member(20), **dead(3.0)) for number in range(WORLD) if number != waiting]
    ranks.append(replace(rank(waiting, entered, **dead(4.0, TIMED_OUT)), calls=history))
    assert told(at_once(ranks)) == ("TW-H1", [culprit])


@every_rank
def test_ranks_that_catch_their_error_and_exit_had_waited_all_the_same(culprit: int) -> None:
    """Their pages say that they came to their end, which was after the wait."""
    caught = dead(4.0, "exit 1") | {"exit_kind": "end", "exit_seconds": 4.0}
    at = {number: member(21, waits=60.0) for number in range(WORLD)} | {culprit: member(20)}
    ranks = [
        rank(n, at[n], **(caught if n != culprit else {"signal": "SIGTERM", "signal_seconds": 4.5} | dead(3.0)))
        for n in range(WORLD)
    ]
    assert told(at_once(ranks)) == ("TW-H1", [culprit])


@every_rank
def test_who_dies_before_an_operation_or_in_it_is_lost_however_long_the_others_wait(culprit: int) -> None:
    assert told(ended({culprit: dead(11.0, "ValueError: loss")})) == ("TW-LOST", [culprit])
    assert told(ended({culprit: dead(12.0, "ValueError: loss")}, {culprit: [member(20)]})) == ("TW-LOST", [culprit])


@every_rank
def test_who_was_not_there_because_it_waited_elsewhere_is_a_victim(culprit: int) -> None:
    """It waits with a peer that sleeps; the rest wait for both."""
    victim = (culprit + 1) % WORLD
    pair = {"group": "pair", "size": 2}
    groups = {number: [failed()] for number in range(WORLD)}
    groups[victim] = [member(20), failed(10, **pair)]
    groups[culprit] = [member(20), member(9, **pair)]
    assert told(ended({culprit: dead(3.0)}, groups)) == ("TW-H1", [culprit])


# All had entered.


@every_rank
@pytest.mark.parametrize(
    ("state", "confidence"),
    [(STOPPED, "high"), (dead(1.0), "low"), (dead(4.0), "low"), (dead(12.0), "medium")],
    ids=["stopped", "killed later", "without a word", "silent long before"],
)
def test_who_did_not_give_up_as_the_others_did_stopped_inside(
    culprit: int, state: dict[str, Any], confidence: str
) -> None:
    """The others would have lost the connection to a process that had gone."""
    finding = only(ended({culprit: state}))
    assert (finding.code, finding.suspects, finding.victims) == ("TW-H3", [culprit], 3)
    assert finding.confidence == confidence
    assert finding.process_group == "world"
    assert "all_reduce #21 of world" in finding.summary
    assert any(f"rank {culprit} " in fact for fact in finding.evidence[1:])


@every_rank
@pytest.mark.parametrize("exit_reason", [TIMED_OUT, CLOSED])
def test_where_all_gave_up_alike_nobody_is_accused(culprit: int, exit_reason: str) -> None:
    """The rank that went first is one of the ranks that waited."""
    finding = only(ended({number: dead(4.0, exit_reason) for number in range(WORLD) if number != culprit}))
    assert (finding.code, finding.suspects, finding.sides) == ("TW-H3", [], [])
    assert "all_reduce #21 of world stopped inside" in finding.summary
    assert finding.victims == WORLD
    assert finding.confidence == "low"


def test_where_a_job_was_ended_nobody_is_accused_of_a_hang_and_of_none_where_it_worked() -> None:
    assert told(ended({number: dead(4.0) for number in range(WORLD)})) == ("TW-H3", [])
    assert only(at_once([rank(n, member(21, waits=4.5), **dead(4.0)) for n in range(WORLD)])).code == "TW-LOST"


def test_a_time_out_of_something_else_is_none_of_the_last_operation() -> None:
    """It came a while after the operation: another thing had taken so long."""
    groups = {n: [failed(before=12.0)] for n in range(WORLD)}
    exit_reason = "RuntimeError: DataLoader timed out after 8 seconds"
    findings = ended({n: dead(4.0, CLOSED) for n in range(WORLD)} | {2: dead(4.5, exit_reason)}, groups)
    assert told(findings) == ("TW-LOST", [2])


@every_rank
@pytest.mark.parametrize("state", [STOPPED, dead(11.0)], ids=["stopped", "silent long before"])
def test_who_is_still_stopped_or_was_silent_where_the_others_were_killed_is_named(
    culprit: int, state: dict[str, Any]
) -> None:
    """The others would have lost a connection to one that had gone, and said so."""
    assert told(ended({number: dead(4.0) for number in range(WORLD)} | {culprit: state})) == ("TW-H3", [culprit])


@every_rank
@pytest.mark.parametrize("said", ["", CLOSED], ids=["with the others", "so that they lose the connection"])
def test_who_was_stopped_outside_and_is_killed_is_named_as_while_it_lived(culprit: int, said: str) -> None:
    ranks = [rank(n, member(21, waits=64.0), **dead(4.0, said)) for n in range(WORLD) if n != culprit]
    assert told(at_once([*ranks, rank(culprit, member(20), **dead(64.0))])) == ("TW-H1", [culprit])


@every_rank
def test_a_crash_is_an_end_however_long_the_others_wait(culprit: int) -> None:
    """They wait for a key of the store, and lose no connection."""
    crash = dead(64.0, "killed by SIGSEGV") | {"exit_kind": "crash"}
    state = {"activity": "Store.wait", "activity_seconds": 64.0}
    ranks = [rank(n, member(20), **dead(4.0, TIMED_OUT), **state) for n in range(WORLD) if n != culprit]
    assert told(at_once([*ranks, rank(culprit, member(20), **crash)])) == ("TW-LOST", [culprit])


def test_of_two_ranks_one_that_fell_silent_is_named_and_one_that_only_said_nothing_is_not() -> None:
    def of_two(state: dict[str, Any]) -> list[Finding]:
        other = member(21, waits=WAITED + 4.0, size=2)
        return at_once([rank(0, failed(size=2), **dead(4.0, TIMED_OUT)), rank(1, other, **state)])

    assert told(of_two(dead(11.0)))[1] == [1]
    assert told(of_two(dead(4.0))) == ("TW-H3", [])


def test_a_rank_that_is_not_in_view_makes_it_less_sure() -> None:
    finding = only(at_once([rank(n, failed(), **dead(4.0, TIMED_OUT)) for n in range(3)]))
    assert (finding.code, finding.suspects) == ("TW-UNKNOWN", [3])
    assert any("not in view" in fact for fact in finding.evidence)


@every_rank
def test_the_rank_whose_transport_stood_still_is_named_where_it_counts_bytes(culprit: int) -> None:
    groups = {n: [failed(sent_bytes=100 if n == culprit else 5000, received_bytes=0)] for n in range(WORLD)}
    assert told(ended({}, groups)) == ("TW-H3", [culprit])


@every_rank
def test_ranks_in_the_next_operation_wait_for_those_still_in_this_one(culprit: int) -> None:
    ahead = (culprit + 1) % WORLD
    finding = only(ended({culprit: STOPPED}, {ahead: [failed(22)]}))
    assert (finding.code, finding.suspects) == ("TW-H3", [culprit])
    assert "all_reduce #21" in finding.summary


@every_rank
def test_a_send_that_its_receiver_was_not_there_for(culprit: int) -> None:
    sender = (culprit + 1) % WORLD
    groups = {number: [member(20)] for number in range(WORLD)}
    groups[sender] = [failed(3, name="send", root=culprit)]
    states = {number: dead(4.0, CLOSED) for number in range(WORLD)} | {sender: dead(4.1, TIMED_OUT)}
    assert told(ended(states, groups)) == ("TW-H1", [culprit])


# What was found while they lived.


def over(
    at: Callable[[float], Observation], ends: float, last_to_go: int | None = None, killed: float = 1e9
) -> Callable[[float], Observation]:
    """A hang that ends by time-outs; one rank stays until it is killed. The others fail, then say so, then go."""

    def later(time: float) -> Observation:
        seen = at(time)
        if time < ends:
            return seen
        for number, one in seen.ranks.items():
            if number != last_to_go:
                said = time - ends - 0.5
                state = {} if said < 0 else {"exit_reason": TIMED_OUT} if said < 1 else dead(said, TIMED_OUT)
                one.process_groups = [
                    replace(failed(group.enqueued, before=said), size=group.size) for group in one.process_groups
                ]
            elif time >= killed:
                state = dead(time - killed)
            else:
                continue
            set_process(one, state)
        seen.edges = [one for one in seen.edges if seen.ranks[one.rank].process.gone_seconds is None]
        return seen

    return later


@every_rank
def test_a_rank_stopped_inside_stays_named_when_the_others_time_out_and_when_it_is_killed(culprit: int) -> None:
    at = over(hung(all_in(), states={culprit: STOPPED}), ends=12.0, last_to_go=culprit, killed=20.0)
    seen = [(time, analysis.findings) for time, analysis in watch(at, 40.0)]
    first = next(findings[0] for _, findings in seen if findings)
    assert (first.code, first.suspects) == ("TW-H3", [culprit])
    for time, findings in seen:
        if time >= first.time and time != 12.0:  # they are through with the operation, and have not said why
            (finding,) = findings
            assert (finding.code, finding.suspects, finding.time) == ("TW-H3", [culprit], first.time), time
            assert finding.confidence == first.confidence


@every_rank
def test_a_link_that_was_down_stays_named_when_all_time_out(culprit: int) -> None:
    def edges(time: float) -> list[Any]:
        cut = time >= 3.0
        return ring(
            send_queue=lambda a, b: 5000 * (cut and culprit in (a, b)),
            backoff=lambda a, b: 4 * (cut and culprit in (a, b)),
        )

    seen = [(time, analysis.findings) for time, analysis in watch(over(hung(all_in(), edges=edges), ends=12.0), 40.0)]
    first = next(findings[0] for _, findings in seen if findings)
    assert (first.code, first.suspects) == ("TW-H3", [culprit])
    assert {(f.code, tuple(f.suspects), f.time) for time, fs in seen if time >= first.time for f in fs} == {
        ("TW-H3", (culprit,), first.time)
    }
    assert [time for time, findings in seen if time >= first.time and not findings] == [12.0], (
        "they have not said it yet"
    )


def test_what_was_found_without_a_suspect_gives_way_to_one_who_did_not_give_up() -> None:
    seen = [
        (time, analysis.findings)
        for time, analysis in watch(over(hung(all_in()), ends=12.0, last_to_go=2, killed=18.0), 40.0)
    ]
    before = next(findings[0] for time, findings in seen if time >= 10)
    assert (before.code, before.suspects) == ("TW-H3", [])
    (after,) = seen[-1][1]
    assert (after.code, after.suspects) == ("TW-H3", [2])


@every_rank
def test_a_rank_that_is_killed_in_a_hang_is_not_what_the_job_hung_on(culprit: int) -> None:
    """What stood still for longer than the gate was there before: live and dead jobs are judged alike."""
    awaited = (culprit + 1) % WORLD
    base = hung(not_entering(awaited))

    def at(time: float) -> Observation:
        seen = base(time)
        if time >= 12.0:
            for number, one in seen.ranks.items():
                set_process(one, dead(time - 12.0) if number == culprit else dead(time - 12.0 - 0.05, CLOSED))
        return seen

    seen = [(time, analysis.findings) for time, analysis in watch(at, 30.0)]
    before = next(findings[0] for time, findings in seen if time >= 10)
    assert (before.code, before.suspects) == ("TW-H1", [awaited])
    (after,) = seen[-1][1]
    assert (after.code, after.suspects) == ("TW-H1", [awaited])


def test_a_hang_that_is_over_before_all_leave_well_is_no_finding() -> None:
    base = hung(not_entering(2))

    def at(time: float) -> Observation:
        if time < 12.0:
            return base(time)
        return observed(time, [rank(n, member(31), **dead(time - 12.0, "exit 0")) for n in range(WORLD)])

    seen = [(time, analysis.findings) for time, analysis in watch(at, 30.0)]
    assert any(findings for _, findings in seen)
    assert not any(findings for time, findings in seen if time >= 12.0)


def test_who_lost_a_connection_and_went_at_once_is_not_named_while_who_timed_out_takes_long_to_end() -> None:
    """By then it is the only one that is gone."""
    base = hung(all_in(), states={1: STOPPED})

    def at(time: float) -> Observation:
        seen = base(time)
        if time >= 12.0:
            for number in {0, 2, 3}:
                seen.ranks[number].process_groups = [failed(31, before=time - 12.0)]
                state = dead(time - 12.0, CLOSED if number == 3 else TIMED_OUT)
                if number != 3 and time < 20.0:
                    state = {"exit_reason": TIMED_OUT}
                set_process(seen.ranks[number], state)
        return seen

    assert {(f.code, tuple(f.suspects)) for _, analysis in watch(at, 40.0) for f in analysis.findings} == {
        ("TW-H3", (1,))
    }


def test_numbers_of_ranks_do_not_decide_which_of_two_differences_is_told() -> None:
    a, b = ({size: member(29, group=group, numel=size) for size in (8, 9)} for group in "ab")
    own = [[a[8], b[9]], [b[8]], [a[8], b[8]], [a[9]]]
    for names in itertools.permutations(range(WORLD)):
        ranks = [rank(name, *groups, **dead(5.0, CLOSED)) for name, groups in zip(names, own, strict=True)]
        finding = only(at_once(ranks))
        assert (finding.code, finding.process_group) == ("TW-H2", "a"), names
