"""How runs of cases and of variants are judged, and what their number is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from job.tests.faults.cases import BY_NAME, Case
from job.tests.faults.verdicts import Judgement, complaint, judge
from job.tests.faults.watch import Poll
from tensorwire_job.model import Confidence, Finding


def found(
    code: str,
    suspects: list[int],
    confidence: Confidence = Confidence.HIGH,
    *,
    level: str = "finding",
    summary: str = "",
    sides: tuple[list[int], ...] = (),
) -> Finding:
    return Finding(code, level, 3.0, suspects, list(sides), "default_pg", summary, [], confidence)  # type: ignore[arg-type]


RIGHT = found("TW-S1", [2])


@pytest.mark.parametrize(
    ("polls", "wrong"),
    [
        ([[], [RIGHT]], ""),
        ([[], []], "nothing found"),
        ([[RIGHT], []], "what was found did not stay"),
        ([[found("TW-S1", [1])]], "TW-S1 1 ("),
        ([[found("TW-S3", [2])]], "TW-S3 R ("),
        ([[found("TW-S1", [2, 1])]], "TW-S1 R, 1 ("),
        ([[RIGHT], [RIGHT, found("TW-S1", [0])]], "TW-S1 0 ("),
        ([[found("TW-UNKNOWN", [])], [RIGHT]], "TW-UNKNOWN"),
        ([[found("TW-H1", [0], level="notice")], [RIGHT]], ""),
    ],
)
def test_whatever_else_is_found_makes_a_run_wrong(polls, wrong):
    text = complaint(BY_NAME["s1-sleep"], 2, [Poll(float(n), findings) for n, findings in enumerate(polls)], 0.0)
    assert wrong in text
    assert bool(wrong) == bool(text)


def test_where_nothing_is_wrong_nothing_may_be_found():
    assert complaint(BY_NAME["healthy"], 0, [Poll(1.0, [found("TW-H1", [0], level="notice")])], 0.0) == ""
    assert "TW-H1" in complaint(BY_NAME["healthy"], 0, [Poll(1.0, [found("TW-H1", [0])])], 0.0)


def test_a_split_names_both_sides_and_no_culprit():
    case = BY_NAME["h2-split"]
    assert complaint(case, 3, [Poll(1.0, [found("TW-H2", [], sides=([1, 2], [0, 3]))])], 0.0) == ""
    assert complaint(case, 3, [Poll(1.0, [found("TW-H2", [3], sides=([1, 2], [0, 3]))])], 0.0)
    assert complaint(case, 3, [Poll(1.0, [found("TW-H2", [], sides=([0, 1], [2, 3]))])], 0.0)


def test_the_evidence_has_to_say_what_decided():
    throttled = replace(RIGHT, evidence=["rank 2 was throttled by its CPU quota for 80 % of the time"])
    case = BY_NAME["s1-quota"]
    assert complaint(case, 2, [Poll(1.0, [throttled])], 0.0) == ""
    assert "no evidence" in complaint(case, 2, [Poll(1.0, [RIGHT])], 0.0)


# Variants.

HANG = Case("hang", "a lock", ("TW-H1", "TW-H2"), "hang")
PAIR = Case("pair", "a split", ("TW-H2",), "pair", tie=lambda rank: sorted((rank, (rank + 1) % 4)))
QUIET = Case("quiet", "other dtype", program="quiet", notice="int32")
HIGH, LOW = Confidence.HIGH, Confidence.LOW


def judged(case: Case, *looks: list[Finding], start: float = 0.0) -> Judgement:
    """The judgement of the fault at rank 2, looked at once a second."""
    return judge(case, 2, [Poll(float(number), findings) for number, findings in enumerate(looks)], start)


def test_a_run_is_right_if_class_and_rank_are_in_every_look_with_a_finding() -> None:
    run = judged(HANG, [], [found("TW-H1", [2])], [found("TW-H2", [2])])
    assert run.right
    assert run.found
    assert run.seconds == 1.0
    assert run.said == "TW-H1 R (high), then TW-H2 R (high)"
    assert run.levels == {"high": [2, 2]}


@pytest.mark.parametrize(
    ("looks", "rank", "code", "innocent"),
    [
        ([[found("TW-H1", [2])], [found("TW-H1", [1])]], False, True, 1),
        ([[found("TW-H1", [1], LOW)]], False, True, 0),
        ([[found("TW-H3", [2])]], True, False, 0),
        ([[found("TW-H1", [2, 1])]], True, True, 1),
        ([[found("TW-H1", [2]), found("TW-H3", [0])]], True, True, 1),
        ([[found("TW-UNKNOWN", [], LOW)]], False, False, 0),
    ],
)
def test_what_is_wrong_is_told_apart(looks: list[list[Finding]], rank: bool, code: bool, innocent: int) -> None:
    run = judged(HANG, *looks)
    assert (run.rank_right, run.class_right, len(run.innocent)) == (rank, code, innocent)
    assert not run.right
    assert run.found


def test_a_verdict_may_come_after_unknown() -> None:
    run = judged(HANG, [found("TW-UNKNOWN", [], LOW)], [found("TW-H1", [2])])
    assert run.right
    assert run.levels == {"low": [0, 1], "high": [1, 1]}


def test_silence_is_wrong_where_there_is_a_fault() -> None:
    run = judged(HANG, [], [found("TW-H1", [2], level="notice", summary="saves")])
    assert not run.found
    assert not run.right
    assert run.wrong == ["nothing found; noticed: saves"]


def test_a_finding_before_the_fault_is_false() -> None:
    run = judged(HANG, [found("TW-S1", [2])], [], [found("TW-H1", [2])], start=1.5)
    assert run.false_looks == 1
    assert run.rank_right
    assert not run.right


def test_a_tie_is_found_and_not_right() -> None:
    for suspects in ([2, 3], [3, 2]):
        run = judged(PAIR, [found("TW-H2", suspects, LOW)])
        assert (run.found, run.tie, run.rank_right, run.class_right) == (True, True, False, True)
    assert not judged(PAIR, [found("TW-H2", [1, 2], LOW)]).tie
    assert judged(PAIR, [found("TW-H2", [2], LOW)]).right


def test_where_nothing_may_be_found_a_notice_may_be_expected() -> None:
    notice = found("TW-H2", [2], level="notice", summary="rank 2 called it with int32")
    assert judged(QUIET, [], [notice]).right
    assert not judged(QUIET, [], []).right
    false = judged(QUIET, [notice], [notice, found("TW-H2", [2])])
    assert (false.right, false.false_looks, false.levels) == (False, 1, {"high": [0, 1]})
    assert len(false.innocent) == 1


def test_sides_that_hold_the_rank_are_counted_apart_from_others_that_are_named() -> None:
    sides = replace(found("TW-H2", [], LOW), sides=[[0, 1], [2]])
    for look in (sides, found("TW-H1", [1, 2])):
        run = judged(HANG, [look])
        assert (run.rank_right, run.holds, run.misnamed) == (False, True, False)
    other = judged(HANG, [sides], [found("TW-H1", [3])])
    assert (other.holds, other.misnamed) == (False, True)
    right = judged(HANG, [found("TW-H1", [2])])
    assert (right.holds, right.misnamed) == (False, False)


def test_the_dead_job_is_compared_with_the_last_look() -> None:
    polls = [Poll(0.0, [found("TW-H2", [2])]), Poll(1.0, [found("TW-H1", [2], LOW)])]
    assert judge(HANG, 2, polls, 0.0).same is None
    for dead, same in (([found("TW-H1", [2])], True), ([found("TW-LOST", [2])], False), ([], False)):
        assert judge(HANG, 2, polls, 0.0, dead).same == same
    told = judge(HANG, 2, [Poll(0.0, [found("TW-S1", [2])])], 0.0, [])
    assert (told.same, told.dead) == (None, "nothing")  # how slow a job was, its end does not show
    assert judge(QUIET, 1, [Poll(0.0, [])], 0.0, [found("TW-LOST", [0])]).false_looks == 1


def test_looks_that_are_close_count_once() -> None:
    polls = [Poll(number / 10, []) for number in range(21)]
    assert judge(QUIET, 1, polls, 0.0).looks == 5  # at 0, 0.5, 1, 1.5 and 2 s
