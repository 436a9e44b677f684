"""The analyzer on ranks that wait for file locks: of ranks, of others, of each other; and on threads that spin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from job.tests.support.analyzed import last, only
from job.tests.support.observations import WORLD, dead, member, observed, rank
from job.tests.support.observed_jobs import every_rank, hung, not_entering, others, some_reduce
from tensorwire_job.model import Call, Operation, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tensorwire_job.model import Observation, ProcessGroup

_STRANGER = 4711


def _pid(number: int) -> int:
    return rank(number).pid


def _locked(
    holder_of: dict[int, int], groups: Callable[[int, float], list[ProcessGroup]], **states: Any
) -> Callable[[float], Observation]:
    """From three seconds on these ranks wait for a lock of these pids; pid 0: it is not known whose."""
    seen_at = hung(groups, **states)

    def at(time: float) -> Observation:
        seen = seen_at(time)
        for number, pid in holder_of.items() if time > 3.0 else ():
            activity = f"file lock (pid {pid})" if pid else "file lock"
            seen.ranks[number].activity, seen.ranks[number].activity_seconds = activity, time - 3.0
        return seen

    return at


def _with_history(seen_at: Callable[[float], Observation], lines: dict[int, int]) -> Callable[[float], Observation]:
    """The last call of each rank, from the line of the script that is given for it, else from line 1."""

    def at(time: float) -> Observation:
        seen = seen_at(time)
        for number, each in seen.ranks.items() if time > 6.0 else ():
            own = each.process_groups[0]
            assert own.operation is not None
            operation = Operation(own.enqueued, "all_reduce", "float32", 1024, -1, own.operation.signature)
            each.calls, each.calls_seconds = [Call("world", operation, lines.get(number, 1))], time - 6.0
        return seen

    return at


@every_rank
def test_who_waits_in_an_operation_with_a_lock_that_all_others_need(culprit: int) -> None:
    finding = only(last(_locked(dict.fromkeys(others(culprit), _pid(culprit)), some_reduce([culprit]))))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H2", [culprit], "medium")
    assert (
        f"wait for the file lock of rank {culprit} (pid {_pid(culprit)}): each waits for the other" in finding.summary
    )


@every_rank
def test_who_keeps_a_lock_and_does_nothing(culprit: int) -> None:
    """No rank is in an operation."""
    finding = only(last(_locked(dict.fromkeys(others(culprit), _pid(culprit)), some_reduce([]))))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H1", [culprit], "high")
    assert finding.summary.startswith(f"rank {culprit} has not given back the file lock that it holds")


@every_rank
def test_who_is_stuck_with_a_lock_is_named_and_not_who_waits_for_it(culprit: int) -> None:
    waiting = (culprit + 1) % WORLD
    inside = [number for number in range(WORLD) if number not in (culprit, waiting)]
    finding = only(last(_locked({waiting: _pid(culprit)}, some_reduce(inside))))
    assert (finding.code, finding.suspects) == ("TW-H1", [culprit])
    assert any(
        fact.startswith(f"rank {waiting} waits for the file lock of rank {culprit}") for fact in finding.evidence
    )


def test_a_chain_of_locks_leads_to_its_end() -> None:
    finding = only(last(_locked({0: _pid(1), 1: _pid(2)}, some_reduce([3]))))
    assert (finding.code, finding.suspects, finding.victims) == ("TW-H1", [2], 3)


def test_two_that_wait_for_each_others_locks_are_sides() -> None:
    finding = only(last(_locked({0: _pid(1), 1: _pid(0)}, some_reduce([2, 3]))))
    assert (finding.suspects, sorted(finding.sides)) == ([], [[0], [1]])
    assert [each.waits_in for each in finding.circle] == [f"the file lock of rank {n} (pid {_pid(n)})" for n in (1, 0)]


def test_two_where_one_holds_the_lock_in_an_operation_are_sides() -> None:
    """Either waits in an operation too early, or wants the lock too late."""
    finding = only(last(_locked({1: _pid(0)}, some_reduce([0, 2, 3]))))
    assert 1 in finding.suspects or [1] in finding.sides
    assert finding.confidence != "high"


_TOLD = f"for a file lock that pid {_STRANGER} has, which is no rank in view"


def test_a_lock_of_another_process_is_told() -> None:
    finding = only(last(_locked({2: _STRANGER}, not_entering(2))))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H1", [2], "medium")
    assert finding.summary == f"rank 2 waits {_TOLD}; 3 ranks wait for it"
    assert any("its main thread waits for a file lock (pid 4711) for " in fact for fact in finding.evidence)


def test_a_lock_of_which_the_holder_is_not_known() -> None:
    finding = only(last(_locked({2: 0}, not_entering(2))))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H1", [2], "medium")
    assert any("its main thread waits for a file lock for " in fact for fact in finding.evidence)


def test_a_lock_of_another_process_that_most_wait_for() -> None:
    seen_at = _with_history(_locked(dict.fromkeys([0, 1, 2], _STRANGER), some_reduce([3])), {})
    finding = only(last(seen_at))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H1", [0, 1, 2], "medium")
    assert finding.summary == f"ranks 0-2 wait {_TOLD}; 1 rank waits for them"


def test_a_lock_of_another_process_that_all_wait_for() -> None:
    finding = only(last(_locked(dict.fromkeys(range(WORLD), _STRANGER), some_reduce([]))))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-UNKNOWN", [], "low")
    assert finding.summary == f"ranks 0-3 wait {_TOLD}"


def test_what_was_entered_once_the_holder_had_ended_was_not_entered_before() -> None:
    """Ranks get the lock as the job is ended, and come to what the culprit waits in."""

    def at(time: float) -> Observation:
        ages = {1: 20.0, 0: 19.5, 2: 19.4, 3: 19.3}
        told = {"exit_kind": "interruption", "exit_reason": "SIGTERM", "signal": "SIGTERM", "signal_seconds": 20.0}
        ranks = []
        for number, age in ages.items():
            own = member(31, waits=60.0) if number == 1 else member(31, waits=19.6)
            one = rank(number, own, **dead(age, "SIGTERM") | told, exit_seconds=age, heartbeat_seconds=age)
            if number != 1:
                one.activity, one.activity_seconds = f"file lock (pid {_pid(1)})", 59.0
            ranks.append(one)
        return observed(time, ranks)

    finding = only(last(at))
    assert (finding.code, finding.suspects) == ("TW-H2", [1])
    assert "ranks 0, 2-3 wait for the file lock of rank 1" in finding.summary


def test_a_lock_of_a_ranks_child_is_that_of_the_rank() -> None:
    states = {1: {"workers": [Worker(_STRANGER, "python", "S")]}}
    finding = only(last(_locked({2: _STRANGER}, some_reduce([0, 3]), states=states)))
    assert (finding.code, finding.suspects) == ("TW-H1", [1])


def test_a_pid_of_another_node_or_of_two_ranks_names_none() -> None:
    def moved(number: int, **of: Any) -> Callable[[float], Observation]:
        seen_at = _locked({2: _pid(1)}, some_reduce([0, 1, 3]))

        def at(time: float) -> Observation:
            seen = seen_at(time)
            for name, value in of.items():
                setattr(seen.ranks[number], name, value)
            return seen

        return at

    assert only(last(moved(1, node="another"))).suspects == [2]
    finding = only(last(moved(0, pid=_pid(1))))
    assert finding.suspects == [2]
    assert "no rank in view" not in finding.summary


def test_a_lock_that_a_rank_holds_itself() -> None:
    finding = only(last(_locked({2: _pid(2)}, not_entering(2))))
    assert (finding.code, finding.suspects) == ("TW-H1", [2])


def _told_of(inside: Collection[int], lines: dict[int, int]) -> tuple[list[int], list[list[int]], str]:
    finding = only(last(_with_history(hung(some_reduce(inside)), lines)))
    assert finding.code == "TW-H1"
    return finding.suspects, sorted(finding.sides), str(finding.confidence)


def test_most_ranks_at_one_line_and_the_one_that_waits_for_them_are_sides() -> None:
    assert _told_of([1], {1: 2}) == ([], [[0, 2, 3], [1]], "medium")


def test_ranks_that_are_few_or_at_several_lines_are_suspects() -> None:
    assert _told_of([1, 2, 3], {}) == ([0], [], "high")
    assert _told_of([1], {0: 3}) == ([0, 2, 3], [], "medium")


def test_a_cpu_that_is_used_without_a_heartbeat_speaks_for_a_spin() -> None:
    """A rank with a heartbeat that uses it makes progress."""

    def spinning(heartbeat: float) -> Callable[[float], Observation]:
        seen_at = hung(lambda n, age: [member(30, idle=age) if n == 1 else member(31, waits=age)])

        def at(time: float) -> Observation:
            seen = seen_at(time)
            if time > 3.0:
                seen.ranks[1].process.cpu_seconds = time
                seen.ranks[1].heartbeat_seconds = heartbeat * (time - 3.0)
            return seen

        return at

    silent, beating = only(last(spinning(1.0))), only(last(spinning(0.0)))
    assert (silent.suspects, beating.suspects) == ([1], [1])
    assert not any("makes progress" in fact for fact in silent.evidence)
    assert any("uses 100 % of a CPU and may hold the GIL" in fact for fact in silent.evidence)
    assert any("makes progress" in fact for fact in beating.evidence)
