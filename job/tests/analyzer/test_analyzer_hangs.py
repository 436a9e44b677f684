"""The analyzer on hangs: class and rank, for the culprit in every place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from job.tests.support.analyzed import SECONDS, everything, last, only, told, watch
from job.tests.support.observations import WORLD, edge, member, observed, rank, ring
from job.tests.support.observed_jobs import all_in, every_rank, hung, not_entering, others
from tensorwire_job.analyzer import Analyzer
from tensorwire_job.analyzer.verdicts import unlike_calls
from tensorwire_job.analyzer.view import waits
from tensorwire_job.model import IN_THREAD, Call
from tensorwire_job.page import native
from tensorwire_job.report.codes import advice

if TYPE_CHECKING:
    from tensorwire_job.model import Finding, Observation, ProcessGroup


def one_out(culprit: int, theirs: Any, its: Any) -> Any:
    return lambda number, age: its(age) if number == culprit else theirs(age)


@every_rank
@pytest.mark.parametrize("state", ["S", "R", "T"], ids=["sleep", "busy", "stopped"])
def test_the_rank_that_does_not_enter(culprit: int, state: str) -> None:
    old = {"heartbeat_seconds": 9.0} if state == "T" else {}
    finding = only(last(hung(not_entering(culprit), states={culprit: {"state": state, **old}})))
    assert (finding.code, finding.suspects, finding.level) == ("TW-H1", [culprit], "finding")
    assert finding.summary == f"rank {culprit} has not entered all_reduce #31 of world; 3 ranks wait for it"
    assert finding.victims == 3
    assert finding.confidence == "high"
    assert any(f"state {state}" in fact or "stopped" in fact for fact in finding.evidence)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("2", "group 2"),
        ("e0f6e457ece77f9c", "group e0f6e457ece77f9c"),
        ("dp", "dp"),
        ("dp2", "dp2"),
        ("decade", "decade"),
    ],
)
def test_a_group_without_a_description_is_called_a_group(name: str, title: str) -> None:
    def groups(number: int, age: float) -> list[ProcessGroup]:
        return [member(30, group=name) if number == 2 else member(31, waits=age, group=name)]

    finding = only(last(hung(groups)))
    assert finding.summary == f"rank 2 has not entered all_reduce #31 of {title}; 3 ranks wait for it"
    assert finding.process_group == title
    assert f"all_reduce #31 of {title} for rank 2" in finding.evidence[0]


def test_the_evidence_is_the_way_from_who_waits_to_who_waits_for_nobody() -> None:
    waits, rest = only(last(hung(not_entering(2)))).evidence
    assert waits.startswith("ranks 0-1, 3 wait in all_reduce #31 of world for rank 2, the longest for ")
    assert rest == "rank 2 waits for no rank: it has entered #30 and nothing since; its process is in state S"


def test_it_is_less_sure_where_a_page_is_old() -> None:
    def groups(number: int, age: float) -> list[ProcessGroup]:
        return [member(31, waits=age, name="broadcast" if number == 2 else "all_reduce")]

    sure, doubtful = (only(last(hung(groups, states={1: {"heartbeat_seconds": age}}))) for age in (0.1, 4.1))
    assert (sure.code, sure.suspects, sure.confidence) == ("TW-H2", [2], "high")
    assert (doubtful.code, doubtful.suspects, doubtful.confidence) == ("TW-H2", [2], "medium")
    assert told(last(hung(not_entering(2), states={2: {"heartbeat_seconds": 9.0}})), "confidence") == (
        "TW-H1", [2], "medium",
    )  # fmt: skip


def test_nothing_before_the_gate_and_then_at_once_for_good() -> None:
    for time, analysis in watch(hung(not_entering(1)), 30):
        found = [(finding.code, finding.time) for finding in analysis.findings]
        assert found == [("TW-H1", 8.0)] * (time - 3 >= SECONDS.hang_seconds), time


def test_the_finding_goes_when_the_job_goes_on() -> None:
    at = hung(not_entering(1))
    analyzer = Analyzer(SECONDS)
    assert analyzer.update(at(9.0)).findings
    assert not analyzer.update(observed(10.0, [rank(n, member(32)) for n in range(WORLD)])).findings


def test_names_of_operations_are_those_of_pages() -> None:
    assert set(native.OPERATIONS) > unlike_calls._OF_ONE_TYPE | waits._UNEVEN


def test_counts_alone_suffice() -> None:
    at = hung(one_out(3, lambda age: [member(31, waits=age, known=False)], lambda age: [member(30, known=False)]))
    finding = only(last(at))
    assert (finding.code, finding.suspects) == ("TW-H1", [3])
    assert "operation #31" in finding.summary


@every_rank
def test_a_job_that_is_stopped_as_a_whole(culprit: int) -> None:
    """Ctrl-Z, or a scheduler that suspends it: one rank happens to be in an operation."""
    groups = one_out(culprit, lambda age: [member(30, idle=age)], lambda age: [member(31, waits=age)])
    stopped = {number: {"state": "T", "heartbeat_seconds": 9.0} for number in range(WORLD)}
    finding = only(last(hung(groups, states=stopped)))
    assert (finding.code, sorted(finding.suspects), finding.victims) == ("TW-H1", [0, 1, 2, 3], 0)
    assert finding.confidence == "high"
    assert finding.summary.startswith("ranks 0-3 are stopped, ranks ")


@every_rank
def test_who_waits_for_a_stopped_rank_is_no_suspect_because_it_lives(culprit: int) -> None:
    """Two ranks are stopped; one is in the operation that the other one has not entered."""
    also = (culprit + 1) % WORLD
    stopped = {number: {"state": "T", "heartbeat_seconds": 9.0} for number in (culprit, also)}
    assert told(last(hung(not_entering(culprit), states=stopped)), "victims") == ("TW-H1", [culprit, also], 2)


@every_rank
def test_who_is_stopped_while_it_waits_for_one_that_lives_is_a_victim(culprit: int) -> None:
    stopped = {(culprit + 1) % WORLD: {"state": "T", "heartbeat_seconds": 9.0}}
    assert told(last(hung(not_entering(culprit), states=stopped))) == ("TW-H1", [culprit])


@every_rank
def test_the_lowest_sequence_is_the_culprit_not_the_fast_minority(culprit: int) -> None:
    fast = (culprit + 1) % WORLD

    def groups(number: int, age: float) -> list[ProcessGroup]:
        name = "broadcast"
        if number == culprit:
            return [member(29, name=name, root=fast)]
        return [member(32 if number == fast else 30, waits=age, name=name, root=fast)]

    assert told(last(hung(groups))) == ("TW-H1", [culprit])


def test_two_that_do_not_enter_are_both_named_the_lower_first() -> None:
    behind = {1: 30, 3: 29}
    at = hung(lambda number, age: [member(behind[number])] if number in behind else [member(31, waits=age)])
    assert only(last(at)).suspects == [3, 1]


@every_rank
def test_who_is_stuck_in_another_group_leads_to_whom_that_group_lacks(culprit: int) -> None:
    stuck = (culprit + 1) % WORLD

    def groups(number: int, age: float) -> list[ProcessGroup]:
        pair = {"group": "pair", "size": 2}
        if number == culprit:
            return [member(30), member(7, **pair)]
        if number == stuck:
            return [member(30), member(8, waits=age, **pair)]
        return [member(31, waits=age)]

    assert told(last(hung(groups)), "victims") == ("TW-H1", [culprit], 3)


@every_rank
def test_two_groups_in_opposite_order(culprit: int) -> None:
    def groups(number: int, age: float) -> list[ProcessGroup]:
        first, second = ("b", "a") if number == culprit else ("a", "b")
        return [member(11, waits=age, group=first), member(10, group=second)]

    finding = only(last(hung(groups)))
    assert (finding.code, finding.suspects) == ("TW-H2", [culprit])
    assert "#11 of a" in finding.summary
    assert "#11 of b" in finding.summary


@pytest.mark.parametrize(("one", "other"), [([0, 3], [1, 2]), ([0], [1])], ids=["half and half", "two ranks"])
def test_of_two_orders_neither_is_that_of_most(one: list[int], other: list[int]) -> None:
    def groups(number: int, age: float) -> list[ProcessGroup]:
        first, second = "ab" if number in one else "ba"
        return [member(11, waits=age, group=first, size=world), member(10, group=second, size=world)]

    world = len(one + other)
    finding = only(last(hung(groups, world=world)))
    assert (finding.code, finding.suspects, sorted(finding.sides)) == ("TW-H2", [], [one, other])
    assert "unknown" in finding.summary


def test_of_two_sides_as_large_neither_is_a_majority() -> None:
    """Ranks 0 and 1 wait in two groups at once, so each side is larger than all that is left of the others."""
    waits_in = [("a", "b"), ("a", "b"), ("a",), ("b",), ("c",)]

    def groups(number: int, age: float) -> list[ProcessGroup]:
        return [member(11, waits=age, group=g, size=5) if g in waits_in[number] else member(10, group=g, size=5)
                for g in "abc"]  # fmt: skip

    finding = only(last(hung(groups, world=5)))
    assert (finding.code, finding.suspects) == ("TW-H2", [])
    assert sorted(finding.sides) == [[0, 1, 2], [0, 1, 3], [4]]


@every_rank
@pytest.mark.parametrize(
    "call",
    [{"name": "all_gather"}, {"numel": 1000}, {"dtype": "float64"}, {"name": "broadcast", "root": 3}],
    ids=["operation", "size", "dtype", "root"],
)
def test_another_call(culprit: int, call: dict[str, Any]) -> None:
    usual = {"name": "broadcast", "root": 0} if "root" in call else {}
    at = hung(one_out(culprit, lambda a: [member(31, waits=a, **usual)], lambda a: [member(31, waits=a, **call)]))
    finding = only(last(at))
    assert (finding.code, finding.suspects, finding.sides) == ("TW-H2", [culprit], [])
    assert any(f"rank {culprit} called" in fact for fact in finding.evidence)


def test_of_two_roots_neither_is_wrong_because_some_ranks_do_not_tell_theirs() -> None:
    def groups(number: int, age: float) -> list[ProcessGroup]:
        group = member(31, waits=age, name="broadcast", root=number if number < 2 else -1)
        assert group.operation is not None
        group.operation.signature = 0  # it would tell the root
        return [group]

    assert told(last(hung(groups)), "sides") == ("TW-H2", [], [[0], [1]])


def test_calls_that_differ_half_and_half_name_both_sides_with_stacks() -> None:
    at = hung(lambda number, age: [member(31, waits=age, numel=8 if number in (0, 2) else 9)])
    analyzer = Analyzer(SECONDS)
    assert analyzer.update(at(9.0)).stacks_of == [0, 1]
    analyzer.add_stack(0, "a")
    analyzer.add_stack(1, "b")
    finding = only(analyzer.update(at(10.0)).findings)
    assert (finding.code, finding.suspects, finding.sides) == ("TW-H2", [], [[0, 2], [1, 3]])
    assert finding.stacks == {0: "a", 1: "b"}
    assert "unknown" in finding.summary


@pytest.mark.parametrize("culprit", range(2))
@pytest.mark.parametrize(("before", "is_told"), [(8, True), (9, False)], ids=["never this", "this as well"])
def test_of_two_that_differ_the_one_is_wrong_whose_line_had_called_something_else(
    culprit: int, before: int, is_told: bool
) -> None:
    def calls(number: int) -> list[Call]:
        """All from one line; the last of the culprit with nine elements."""
        sizes = [(29, before if number == culprit else 8), (30, 8), (31, 9 if number == culprit else 8)]
        called = [(entered, member(entered, size=2, numel=numel).operation) for entered, numel in sizes]
        return [Call("world", op, line=7) for _, op in called if op is not None]

    def groups(number: int, age: float) -> list[ProcessGroup]:
        return [member(31, waits=age, size=2, numel=9 if number == culprit else 8)]

    seen_at = hung(groups, world=2)

    def at(time: float) -> Observation:
        seen = seen_at(time)
        for number, one in seen.ranks.items():
            one.calls = calls(number) if time > 3.0 else []
        return seen

    finding = only(last(at))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H2", [culprit] * is_told, "medium")
    assert len(finding.sides) == (0 if is_told else 2)


@every_rank
def test_two_threads_that_race_in_one_group_make_sides(culprit: int) -> None:
    """Chance decides which comes first, on each rank. Where all call it in one thread, the minority is wrong."""

    def verdict(line: int) -> Finding:
        def groups(number: int, age: float) -> list[ProcessGroup]:
            return [member(31, waits=age, numel=9 if number == culprit else 8)]

        seen_at = hung(groups)

        def at(time: float) -> Observation:
            seen = seen_at(time)
            for number, one in seen.ranks.items():
                operation = one.process_groups[0].operation
                assert operation is not None
                one.calls = [Call("world", operation, line if number == culprit else 7)]
            return seen

        return only(last(at))

    raced, other = verdict(8 | IN_THREAD), verdict(8)
    assert (raced.code, raced.suspects, raced.confidence) == ("TW-H2", [], "low")
    assert sorted(map(len, raced.sides)) == [1, WORLD - 1]
    assert "#31 of world, as two threads use one group, and chance orders them: ranks" in raced.summary
    assert advice(raced).startswith("Give the thread a group of its own")
    assert (other.suspects, other.confidence) == ([culprit], "high")


@every_rank
def test_an_abort_names_who_called_something_else_not_who_died(culprit: int) -> None:
    victim = (culprit + 1) % WORLD
    dead = {victim: {"life": "lost", "gone_seconds": 5.0}}
    at = hung(one_out(culprit, lambda a: [member(31, waits=a)], lambda a: [member(31, waits=a, numel=7)]), states=dead)
    assert told(last(at, 4.0)) == ("TW-H2", [culprit])


@every_rank
@pytest.mark.parametrize("state", [{"state": "T", "life": "stopped", "heartbeat_seconds": 9.0}, {}])
def test_unread_data_points_at_who_does_not_read(culprit: int, state: dict[str, Any]) -> None:
    def edges(time: float) -> list[Any]:
        return ring(receive_queue=lambda a, b: 4096 if a == culprit else 0)

    at = hung(all_in(), edges=edges, states={culprit: state})
    finding = only(last(at))
    assert (finding.code, finding.suspects) == ("TW-H3", [culprit])
    assert any("8.0 KiB lie unread" in fact for fact in finding.evidence)


@every_rank
def test_link_down(culprit: int) -> None:
    def edges(time: float) -> list[Any]:
        def at_culprit(a: int, b: int) -> bool:
            return culprit in (a, b) and time > 3

        return ring(
            backoff=lambda a, b: 4 * at_culprit(a, b),
            send_queue=lambda a, b: 65536 * at_culprit(a, b),
            busy_seconds=lambda a, b: (time - 3) if at_culprit(a, b) else 0.0,
        )

    finding = only(last(hung(all_in(), edges=edges)))
    assert (finding.code, finding.suspects) == ("TW-H3", [culprit])
    assert any("backed off 4 times" in fact for fact in finding.evidence)


@every_rank
def test_choked_egress(culprit: int) -> None:
    """Bytes trickle at a rate no network has: that is a hang, at the rank whose data waits to be sent."""

    def edges(time: float) -> list[Any]:
        def out(a: int, b: int) -> bool:
            return a == culprit and time > 3

        return ring(
            acked_bytes=lambda a, b: int(2e6 * min(time, 3) + 1000 * max(0.0, time - 3) * out(a, b)),
            send_queue=lambda a, b: 65536 * out(a, b),
            busy_seconds=lambda a, b: 0.2 * min(time, 3) + (time - 3) * out(a, b),
        )

    assert told(last(hung(all_in(), edges=edges))) == ("TW-H3", [culprit])


def test_nothing_tells_where_it_stopped() -> None:
    assert told(last(hung(all_in(known=False)))) == ("TW-UNKNOWN", [])
    finding = only(last(hung(all_in())))
    assert (finding.code, finding.suspects) == ("TW-H3", [])
    assert "unknown" in finding.summary
    assert finding.confidence == "low"


@every_rank
def test_who_does_not_get_out_of_what_the_others_have_left_may_be_wrong_or_those_who_left(culprit: int) -> None:
    """As the root of a reduce does to which no rank has sent: it has another root than the others."""
    finding = only(last(hung(lambda number, age: [member(31 if number == culprit else 32, waits=age)])))
    assert (finding.code, finding.suspects, finding.sides) == ("TW-H3", [], [[culprit], others(culprit)])
    assert f"stopped inside at rank {culprit}, and ranks" in finding.summary


def test_a_rank_out_of_view_may_be_who_is_missing() -> None:
    def at(time: float) -> Any:
        return observed(time, [rank(n, member(31, waits=time)) for n in (0, 1, 3)])

    finding = only(last(at))
    assert (finding.code, finding.suspects) == ("TW-UNKNOWN", [2])
    assert any("not in view" in fact for fact in finding.evidence)


def test_confidence_is_lower_where_the_view_is_incomplete() -> None:
    def at(missing: set[int], **more: Any) -> str:
        ranks = [rank(n, member(31 - (n == 1), waits=None if n == 1 else 9.0), **more) for n in range(4)]
        return only(last(lambda time: observed(time, [r for r in ranks if r.rank not in missing]), 1.0)).confidence

    assert at(set()) == "high"
    assert at({3}) == at(set(), overflow=True) == "medium"


def test_a_declared_phase_makes_it_a_notice() -> None:
    finding = only(last(hung(not_entering(0), states={0: {"phase": "checkpoint"}})))
    assert (finding.code, finding.suspects, finding.level) == ("TW-H1", [0], "notice")
    assert "checkpoint" in finding.summary


def test_who_ends_a_declared_phase_gets_the_gates_time_to_enter() -> None:
    at = hung(not_entering(0), states={0: {"phase": "checkpoint"}})

    def ended(time: float) -> Observation:
        observation = at(time)
        observation.ranks[0].phase = "checkpoint" if time < 11.0 else ""
        return observation

    levels = [(time, finding.level) for time, analysis in watch(ended, 20.0) for finding in analysis.findings]
    assert {level for time, level in levels if time < 11.0 + SECONDS.hang_seconds - 1} == {"notice"}
    assert levels[-1][1] == "finding"


def test_work_on_rank_0_alone_is_reported_as_waiting_on_it_with_its_stack() -> None:
    at = hung(not_entering(0))
    analyzer = Analyzer(SECONDS)
    assert analyzer.update(at(9.0)).stacks_of == [0]
    analyzer.add_stack(0, "save_checkpoint")
    analysis = analyzer.update(at(10.0))
    finding = only(analysis.findings)
    assert (finding.suspects, finding.stacks) == ([0], {0: "save_checkpoint"})
    assert analysis.stacks_of == []


def test_a_huge_transfer_is_no_hang() -> None:
    def edges(time: float) -> list[Any]:
        return ring(acked_bytes=lambda a, b: int(1e8 * time))

    told = everything(hung(all_in(), edges=edges), 60)
    assert {(notice.code, notice.level) for notice in told} == {("TW-UNKNOWN", "notice")}
    assert told[-1].summary.startswith(
        "ranks 0-3 work (rank 0 exchanges 95.4 MiB/s with other ranks); no rank has completed an operation for 57 s"
    )
    assert told[-1].evidence[0] == (
        "rank 0 is in all_reduce #31 of world for 57 s; it exchanges 95.4 MiB/s with other ranks"
    )


def test_who_looks_late_sees_after_a_step_that_a_huge_transfer_goes_on() -> None:
    at = hung(all_in(), edges=lambda time: ring(acked_bytes=lambda a, b: int(1e8 * time)))
    looks = list(watch(lambda time: at(time + 20.0), 6.0))
    assert {finding.level for _, analysis in looks[1:] for finding in analysis.findings} <= {"notice"}


def test_bytes_of_other_operations_do_not_hide_a_hang() -> None:
    """Ranks 2 and 3 go on with operations of their own while the world's all-reduce stands still."""

    def groups(number: int, age: float) -> list[ProcessGroup]:
        own = [] if number < 2 else [member(100 + int(10 * age), group="own", size=2)]
        return [member(31, waits=age), *own]

    def edges(time: float) -> list[Any]:
        return [edge(2, 3, acked_bytes=int(1e8 * time)), edge(3, 2, acked_bytes=int(1e8 * time))]

    assert only(last(hung(groups, edges=edges))).code == "TW-H3"


@every_rank
def test_whom_all_waited_for_has_come_and_some_have_left(culprit: int) -> None:
    """What the others show is of a moment ago: the operation is ending, not stuck."""

    def groups(number: int, age: float) -> list[ProcessGroup]:
        if age < 8.0:
            return [member(30, idle=age) if number == culprit else member(31, waits=age)]
        came = number in (culprit, (culprit + 1) % WORLD)
        return [member(31, waits=None if came else age, idle=age - 7.9)]

    found = everything(hung(groups), 11.5)
    assert {(finding.code, *finding.suspects) for finding in found} == {("TW-H1", culprit)}
    assert last(hung(groups), 11.5) == []
    assert only(last(hung(groups), 15.0)).code == "TW-H3"


@every_rank
def test_an_all_to_all_that_a_rank_does_not_enter(culprit: int) -> None:
    all_to_all = {"name": "all_to_all_single"}
    at = one_out(culprit, lambda age: [member(31, waits=age, **all_to_all)], lambda age: [member(30, **all_to_all)])
    assert told(last(hung(at)), "victims") == ("TW-H1", [culprit], 3)


@every_rank
@pytest.mark.parametrize("name", ["all_to_all", "all_reduce"])
def test_who_has_left_what_the_others_are_in_may_have_got_all_that_it_needed(culprit: int, name: str) -> None:
    """It called what they called. That a call differed, its history shows."""

    def groups(number: int, age: float) -> list[ProcessGroup]:
        return [member(31, waits=None if number == culprit else age, idle=age, name=name)]

    assert told(last(hung(groups))) == ("TW-H3", [])


def test_news_of_a_silent_agent_blames_nobody() -> None:
    """The node of rank 3 falls silent in good times: its counts stay behind, and that is no one's fault."""

    def at(time: float) -> Any:
        ranks = [rank(n, member(int(10 * min(time, 5 if n == 3 else time)) + 1)) for n in range(4)]
        ranks[3].node = "far"
        return observed(time, ranks, silent_nodes=["far"] if time > 8 else [])

    assert not everything(at, 60)
