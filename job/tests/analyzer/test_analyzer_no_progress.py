"""The analyzer on jobs that run and complete nothing: never silent, and a finding only where no rank works."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from job.tests.support.analyzed import SECONDS, everything, last, only, told, watch
from job.tests.support.observations import WORLD, member, observed, rank, ring
from job.tests.support.observed_jobs import every_rank, healthy, hung, not_entering, others
from tensorwire_job.analyzer import Analyzer
from tensorwire_job.model import Worker
from tensorwire_job.stacks import sides_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire_job.model import Observation

GATE = SECONDS.hang_seconds


def quiet(
    of: Callable[[int, float], dict[str, Any]] = lambda n, time: {}, **more: Any
) -> Callable[[float], Observation]:
    """Ranks have come back from their last operation at second 3, and enter none."""

    def at(time: float) -> Observation:
        if time < 3.0:
            return healthy(time)
        return observed(time, [rank(n, member(31, idle=time - 3.0), **of(n, time)) for n in range(WORLD)], **more)

    return at


def test_a_job_in_which_nobody_does_anything_is_told_with_the_stacks_of_all() -> None:
    analyzer, at = Analyzer(SECONDS), quiet()
    for time in range(20):
        analysis = analyzer.update(at(float(time)))
        assert bool(analysis.findings) == (time - 3.0 >= GATE), time
    finding = only(analysis.findings)
    assert (finding.code, finding.level, finding.suspects, finding.victims) == ("TW-UNKNOWN", "finding", [], WORLD)
    assert finding.summary.startswith("no rank has completed an operation for ")
    assert analysis.stacks_of == list(range(WORLD))
    for number in range(WORLD):
        analyzer.add_stack(number, "in a lock")
    assert len(only(analyzer.update(at(20.0)).findings).stacks) == WORLD


POLLS = """Thread 0x{0} (most recent call first):
  File "train.py", line {1} in rendezvous
  File "train.py", line 19 in <module>"""
STUCK = """Thread 0x{0} (most recent call first):
  File "threading.py", line 355 in wait

Thread 0x9{0} (most recent call first):
  File "train.py", line 7 in evaluate
  File "train.py", line {1} in <module>"""


@every_rank
def test_who_stands_elsewhere_than_most_is_a_side_of_low_confidence(culprit: int) -> None:
    analyzer, at = Analyzer(SECONDS), quiet()
    for time in range(20):
        analyzer.update(at(float(time)))
    for number in others(culprit):
        analyzer.add_stack(number, POLLS.format(number, 10 + number % 2))
    assert only(analyzer.update(at(20.0)).findings).sides == [], "one stack is to come"
    analyzer.add_stack(culprit, STUCK.format(culprit, 18))
    finding = only(analyzer.update(at(21.0)).findings)
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-UNKNOWN", [], "low")
    assert finding.sides == [[culprit], others(culprit)]
    assert finding.evidence[-1].startswith(f"by their stacks, rank {culprit} and rank")


def test_where_as_many_stand_at_two_places_or_all_at_their_own_there_are_no_sides() -> None:
    assert sides_of({n: POLLS.format(n, 10) if n < 2 else STUCK.format(n, 18) for n in range(4)}) == []
    assert sides_of({n: STUCK.format(n, n) for n in range(4)}) == []
    assert sides_of({n: POLLS.format(n, n) for n in range(4)}) == []


@every_rank
def test_operations_that_are_younger_than_the_gate_are_told_when_they_are_as_old(culprit: int) -> None:
    """Ranks work for a second after their last operation; then all but one enter the next."""

    def group(number: int, time: float) -> Any:
        is_in = number != culprit and time >= 4.0
        return replace(member(31 + is_in, waits=time - 4.0 if is_in else None), idle_seconds=time - 3.0)

    def at(time: float) -> Observation:
        return healthy(time) if time < 3.0 else observed(time, [rank(n, group(n, time)) for n in range(WORLD)])

    for time, analysis in watch(at, 12.0, step=0.5):
        found = [(finding.code, finding.suspects) for finding in analysis.findings]
        assert found == ([("TW-H1", [culprit])] if time - 4.0 >= GATE else []), time


@every_rank
@pytest.mark.parametrize(
    ("counters", "says"),
    [
        (lambda time: {"cpu_seconds": 0.98 * time}, "uses 98 % of a CPU"),
        (lambda time: {"written_bytes": int(3e6 * time)}, "writes 2.9 MiB/s"),
        (lambda time: {"read_bytes": int(3e6 * time)}, "reads 2.9 MiB/s"),
        (lambda time: {"workers": [Worker(7, "pt_data_worker", "R", "", 0.5 * time)]}, "uses 50 % of a CPU"),
    ],
    ids=["compiles", "writes", "loads", "its loader works"],
)
def test_a_rank_that_works_is_a_notice_which_says_what_it_does(culprit: int, counters: Any, says: str) -> None:
    found = everything(quiet(lambda n, time: counters(time) if n == culprit else {}), 30.0)
    assert {(notice.code, notice.level, *notice.suspects) for notice in found} == {("TW-UNKNOWN", "notice", culprit)}
    assert found[-1].summary.startswith(f"rank {culprit} {says}; no rank has completed an operation for ")


def test_what_its_stack_says_it_is_in_is_told() -> None:
    def of(n: int, time: float) -> dict[str, Any]:
        return {"cpu_seconds": time, "activity": "torch.compile", "activity_seconds": time - 3.0}

    assert "its main thread is in torch.compile for " in last(quiet(of), 20.0)[0].evidence[0]


def test_a_declared_phase_makes_it_a_notice() -> None:
    finding = only(last(quiet(lambda n, time: {"phase": "checkpoint"}), 20.0))
    assert finding.level == "notice"
    assert "(in declared phase: checkpoint)" in finding.summary


@every_rank
def test_who_lives_on_after_it_has_destroyed_its_groups_is_a_notice(culprit: int) -> None:
    """It saves the model, or waits for a tracker: no rank needs it any more."""

    def of(n: int, time: float) -> dict[str, Any]:
        at_end = {"setup": "destroyed", "setup_seconds": time - 4.0} if time >= 4.0 else {}
        return at_end if n == culprit or time < 5.0 else {**at_end, "life": "exited", "exit_reason": "exit 0"}

    found = everything(quiet(of), 30.0)
    assert {(notice.code, notice.level, notice.victims) for notice in found} == {("TW-UNKNOWN", "notice", 1)}
    assert found[-1].summary.endswith("(after destroy_process_group)")


def test_who_has_not_destroyed_its_groups_makes_the_silence_a_finding() -> None:
    def of(n: int, time: float) -> dict[str, Any]:
        return {"setup": "destroyed" if n else "initialized", "setup_seconds": max(time - 4.0, 0.0)}

    assert only(last(quiet(of), 20.0)).level == "finding"


@pytest.mark.parametrize(("rate", "says"), [(1e6, "976.6 KiB/s"), (2e4, "19.5 KiB/s")])
def test_ranks_that_exchange_bytes_in_messages_nobody_counts_are_a_notice(rate: float, says: str) -> None:
    def at(time: float) -> Observation:
        ranks = [rank(n, member(1, idle=time)) for n in range(WORLD)]
        return observed(time, ranks, ring(acked_bytes=lambda a, b: int(rate * time)))

    found = everything(at, 60.0)
    assert {(notice.code, notice.level, *notice.suspects) for notice in found} == {("TW-UNKNOWN", "notice", *range(4))}
    assert (
        f"rank 0 is in no operation that the probe sees; it exchanges {says} with other ranks" in found[-1].evidence[0]
    )
    assert found[0].time == GATE


def test_bytes_of_what_was_completed_before_do_not_count() -> None:
    """Nor does the work that went before: ranks that stop all at once are told when the gate has passed."""

    def at(time: float) -> Observation:
        trained = min(time, 3.0)
        seen = quiet(lambda n, time: {"cpu_seconds": trained, "written_bytes": int(1e8 * trained)})(time)
        seen.edges = ring(acked_bytes=lambda a, b: int(1e8 * trained))
        return seen

    assert [finding.level for finding in last(at, 3.0 + GATE)] == ["finding"]


def test_who_pauses_while_it_writes_is_no_finding() -> None:
    """A second of writing, three of waiting for the disk."""

    def of(n: int, time: float) -> dict[str, Any]:
        rounds, rest = divmod(time, 4.0)
        return {"written_bytes": int(1e6 * (rounds + min(rest, 1.0)))}

    assert {notice.level for notice in everything(quiet(of), 60.0)} == {"notice"}


@pytest.mark.parametrize("step", [0.1, 0.15, 0.19, 0.25])
def test_where_no_sample_tells_yet_nobody_is_said_to_be_still(step: float) -> None:
    """The gate is as short as what samples need and what counts before it together."""
    analyzer = Analyzer(replace(SECONDS, hang_seconds=3.0, slow_seconds=2.0))
    at = quiet(lambda n, time: {"written_bytes": int(1e6 * max(time - 3.0, 0.0))})
    found = [each for i in range(int(8.0 / step)) for each in analyzer.update(at(i * step)).findings]
    assert {each.level for each in found} == {"notice"}


def test_who_waits_for_a_cpu_that_others_have_works() -> None:
    """Four ranks that compile on half a CPU."""
    found = everything(quiet(lambda n, time: {"cpu_seconds": 0.12 * time, "wait_seconds": 0.85 * time}), 30.0)
    assert {notice.level for notice in found} == {"notice"}
    assert "uses 12 % of a CPU and waits for one 85 % of the time" in found[-1].evidence[0]
    idle = everything(quiet(lambda n, time: {"cpu_seconds": 0.01 * time, "wait_seconds": 0.85 * time}), 30.0)
    assert {finding.level for finding in idle} == {"finding"}, "the threads of the probe wait for one too"


def test_a_notice_becomes_a_finding_once_nobody_works() -> None:
    def of(n: int, time: float) -> dict[str, Any]:
        return {"cpu_seconds": min(time, 15.0)}

    levels = [(time, [finding.level for finding in analysis.findings]) for time, analysis in watch(quiet(of), 40.0)]
    assert (10.0, ["notice"]) in levels
    assert levels[-1][1] == ["finding"]
    finding = only(last(quiet(of), 40.0))
    assert finding.suspects == []
    assert 15.0 < finding.time <= 15.0 + 2 * GATE, "its own time, not that of the notice"


def test_a_job_that_was_looked_at_for_a_moment_only_is_no_finding_yet() -> None:
    """It has stood still for an hour, and it may be that it writes again in a second."""
    at = quiet()
    assert everything(lambda time: at(time + 3600.0), GATE - 2.0) == []
    assert only(last(lambda time: at(time + 3600.0), GATE + 1.0)).level == "finding"


def test_a_healthy_job_of_few_operations_is_well() -> None:
    """One in four seconds."""
    assert everything(lambda time: healthy(time, rate=0.25), 100.0) == []


def test_a_rank_that_was_seen_only_now_gets_the_gates_time() -> None:
    """Nothing is known of it from before: it has no process group yet."""

    def at(time: float) -> Observation:
        return observed(time, [rank(n) for n in range(WORLD)])

    assert everything(at, GATE - 1) == []
    assert only(last(at, GATE + 1)).code == "TW-UNKNOWN"


# Before the first operation.


def starting(culprit: int, *, setup: str = "before init", **more: Any) -> Callable[[float], Observation]:
    def at(time: float) -> Observation:
        states = [{"setup": setup, **more} if n == culprit else {"setup": "in init"} for n in range(WORLD)]
        return observed(time, [rank(n, setup_seconds=time, **state) for n, state in enumerate(states)])

    return at


@every_rank
def test_who_has_not_called_init_process_group_is_named(culprit: int) -> None:
    finding = only(last(starting(culprit), 9.0))
    assert (finding.code, finding.suspects, finding.victims, finding.confidence) == ("TW-H1", [culprit], 3, "high")
    assert finding.summary == f"rank {culprit} has not called init_process_group; 3 ranks wait in it"
    assert everything(starting(culprit), GATE - 1) == []


def test_a_rank_that_is_still_loading_is_named_with_less_confidence() -> None:
    finding = only(last(lambda time: starting(2, cpu_seconds=time, activity="import")(time), 9.0))
    assert (finding.suspects, finding.confidence) == ([2], "medium")


def test_all_are_in_init_and_it_does_not_return() -> None:
    finding = only(last(starting(-1), 9.0))
    assert (finding.code, finding.suspects) == ("TW-UNKNOWN", [])
    assert "init_process_group does not return" in finding.summary


def test_a_rank_that_is_not_in_view_may_be_the_one_that_does_not_come() -> None:
    def at(time: float) -> Observation:
        return observed(time, [rank(n, setup="in init", setup_seconds=time) for n in (0, 1, 3)])

    assert told(last(at, 9.0)) == ("TW-UNKNOWN", [2])


# Ranks that others wait for, and that work.


@every_rank
def test_who_makes_progress_by_itself_is_named_with_less_confidence(culprit: int) -> None:
    def at(time: float, *, works: bool) -> Observation:
        seen = hung(not_entering(culprit))(time)
        seen.ranks[culprit].process.written_bytes = int(1e8 * time) if works else 10
        seen.ranks[culprit].activity = "torch.save" if works else ""
        return seen

    saves, sleeps = (only(last(lambda time, w=works: at(time, works=w))) for works in (True, False))  # type: ignore[misc]
    assert (saves.code, saves.suspects) == (sleeps.code, sleeps.suspects) == ("TW-H1", [culprit])
    assert (saves.confidence, sleeps.confidence) == ("medium", "high")
    assert f"rank {culprit} makes progress by itself: it writes 95.4 MiB/s" in saves.evidence
    assert any("its main thread is in torch.save" in fact for fact in saves.evidence)


@every_rank
@pytest.mark.parametrize("activity", ["torch.save", "DataLoader"])
def test_who_writes_a_checkpoint_may_come_though_nothing_of_it_is_seen_yet(culprit: int, activity: str) -> None:
    def at(time: float) -> Observation:
        seen = hung(not_entering(culprit))(time)
        seen.ranks[culprit].activity = activity
        return seen

    finding = only(Analyzer(SECONDS).update(at(20.0)).findings)
    assert (finding.suspects, finding.confidence) == ([culprit], "medium" if activity == "torch.save" else "high")


def test_the_workers_of_a_suspect_are_told_of() -> None:
    at = hung(not_entering(1))

    def with_worker(time: float) -> Observation:
        seen = at(time)
        seen.ranks[1].process.workers = [Worker(4711, "pt_data_worker", "S", "pipe_read")]
        return seen

    finding = only(last(with_worker))
    assert any("its child pt_data_worker (pid 4711) is in state S in pipe_read" in fact for fact in finding.evidence)


# Types that differ where nothing stops.


@every_rank
def test_another_type_that_nothing_stops_at_is_a_notice(culprit: int) -> None:
    def at(time: float) -> Observation:
        stands = 10.0 <= time < 12.0  # ranks describe what they called where they stand still for a moment
        done = int(10 * min(time, 10.0) + 10 * max(0.0, time - 12.0)) + 1
        dtypes = ["int32" if n == culprit else "float32" for n in range(WORLD)]
        groups = [member(done, name="all_gather", dtype=dtype, known=stands) for dtype in dtypes]
        return observed(time, [rank(n, group) for n, group in enumerate(groups)])

    told = everything(at, 30.0)
    assert {(notice.code, notice.level, *notice.suspects) for notice in told} == {("TW-H2", "notice", culprit)}
    assert f"rank {culprit} called all_gather(int32, 1024 elements)" in told[-1].summary
    assert told[-1].time == 10.0
    assert last(at, 30.0), "it is remembered after they have gone on"


def test_messages_and_what_may_differ_are_no_notice() -> None:
    for name in ("send", "all_to_all", "scatter", "barrier"):
        at = [rank(n, member(5, name=name, root=0, dtype="int32" if n == 1 else "float32")) for n in range(WORLD)]
        assert everything(lambda time, at=at: observed(time, at), 8.0) == []  # type: ignore[misc]


@every_rank
def test_who_compiles_and_gets_on_with_it_is_a_notice(culprit: int) -> None:
    """Ranks compile for unequal times, by compilers that come and go."""

    def at(time: float, *, until: float) -> Observation:
        seen = hung(not_entering(culprit))(time)
        seen.ranks[culprit].activity = "torch.compile"
        if time < until:
            seen.ranks[culprit].process.workers = [Worker(int(time), "cc1plus", "R")]
        return seen

    assert {(notice.level, *notice.suspects) for notice in everything(lambda time: at(time, until=99.0), 40.0)} == {
        ("notice", culprit)
    }
    finding = only(last(lambda time: at(time, until=20.0), 40.0))
    assert (finding.level, finding.suspects, finding.confidence) == ("finding", [culprit], "medium")


def test_a_checkpoint_that_slow_storage_holds_up_is_a_notice_for_a_while() -> None:
    """Nothing is written meanwhile: all that is known is that the ranks save."""
    at = quiet(lambda n, time: {"activity": "checkpoint", "activity_seconds": time - 3.0})
    told = {time: analysis.findings for time, analysis in watch(at, 60.0)}
    assert [only(told[time]).level for time in (3.0 + GATE, 20.0, 60.0)] == ["notice", "notice", "finding"]
    assert "ranks 0-3 work (rank 0 is in checkpoint); no rank has" in only(told[20.0]).summary


@pytest.mark.parametrize(("in_four", "level"), [(4, "notice"), (3, "notice"), (1, "finding")])
def test_ranks_that_would_run_if_they_had_a_cpu_are_no_silence(in_four: int, level: str) -> None:
    """The machine is busy with others, and they get next to nothing. In so many of four looks, they want a CPU."""

    def of(n: int, time: float) -> dict[str, Any]:
        return {"state": "R" if int(time) % 4 < in_four else "S", "cpu_seconds": 0.04 * time}

    found = everything(quiet(of), 30.0)
    assert {each.level for each in found} == {level}
    assert ("state R" in found[-1].summary) == (level == "notice")


def test_ranks_that_import_on_a_busy_machine_are_no_silence() -> None:
    def at(time: float) -> Observation:
        return observed(time, [rank(n, setup="before init", state="RS"[int(time) % 4 == 3]) for n in range(WORLD)])

    assert {notice.level for notice in everything(at, 30.0)} == {"notice"}


def test_who_would_come_to_init_if_it_had_a_cpu_is_named_with_less_confidence() -> None:
    finding = only(last(starting(2, state="R"), 9.0))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H1", [2], "medium")
    assert finding.evidence[1].startswith("rank 2 waits for no rank: it has not called init_process_group; it runs, ")
    assert only(last(starting(2, state="R", setup="in init"), 9.0)).level == "notice"


@every_rank
def test_who_compiles_and_waits_for_a_cpu_is_a_notice(culprit: int) -> None:
    """In state R in two looks of three; the next rank is between two graphs, and writes what it compiled."""

    def at(time: float) -> Observation:
        late = (culprit, (culprit + 1) % WORLD)
        seen = hung(lambda n, age: [member(30, idle=age) if n in late else member(31, waits=age)])(time)
        seen.ranks[culprit].activity = "torch.compile"
        seen.ranks[culprit].process.state = "RRS"[int(time) % 3]
        seen.ranks[late[1]].process.written_bytes = int(1e6 * time)
        return seen

    assert {(notice.code, notice.level) for notice in everything(at, 40.0)} == {("TW-H1", "notice")}


@pytest.mark.timeout(60)
def test_a_long_line_of_a_stack_takes_no_time() -> None:
    """Agents send any text. A pattern that tries all ways to read it would take days."""
    line = " " * 20_000 + ":" * 20_000 + "x" * 20_000
    stack = f"<module>\n{line}\n{line} 1\n"
    assert sides_of({n: stack if n else stack + " f (train.py:1)" for n in range(4)}) == [[0], [1, 2, 3]]
