"""How runs with a fault are judged, and what their number is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from job.tests.faults.cases import BY_NAME
from job.tests.faults.judge import complaint
from job.tests.faults.runs import wilson
from job.tests.faults.watch import Poll
from tensorwire_job.model import Confidence, Finding


def found(code: str, suspects: list[int], level: str = "finding", sides: tuple[list[int], ...] = ()) -> Finding:
    return Finding(code, level, 3.0, suspects, list(sides), "default_pg", "", [], Confidence.HIGH)  # type: ignore[arg-type]


RIGHT = found("TW-S1", [2])


@pytest.mark.parametrize(
    ("polls", "wrong"),
    [
        ([[], [RIGHT]], ""),
        ([[], []], "nothing found"),
        ([[RIGHT], []], "what was found did not stay"),
        ([[found("TW-S1", [1])]], "TW-S1 [1]"),
        ([[found("TW-S3", [2])]], "TW-S3 [2]"),
        ([[found("TW-S1", [2, 1])]], "TW-S1 [2, 1]"),
        ([[RIGHT], [RIGHT, found("TW-S1", [0])]], "TW-S1 [0]"),
        ([[found("TW-UNKNOWN", [])], [RIGHT]], "TW-UNKNOWN"),
        ([[found("TW-H1", [0], "notice")], [RIGHT]], ""),
    ],
)
def test_whatever_else_is_found_makes_a_run_wrong(polls, wrong):
    text = complaint(BY_NAME["s1-sleep"], 2, [Poll(float(n), findings) for n, findings in enumerate(polls)], 0.0)
    assert wrong in text
    assert bool(wrong) == bool(text)


def test_where_nothing_is_wrong_nothing_may_be_found():
    assert complaint(BY_NAME["healthy"], 0, [Poll(1.0, [found("TW-H1", [0], "notice")])], 0.0) == ""
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


def test_the_interval_of_wilson():
    z2 = 1.959964**2
    assert wilson(20, 20) == pytest.approx((20 / (20 + z2), 1.0))
    assert wilson(0, 10) == pytest.approx((0.0, z2 / (10 + z2)))
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)  # Newcombe 1998, method 3
    assert wilson(0, 0) == (0.0, 1.0)
