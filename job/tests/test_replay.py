"""Recordings of real jobs with a fault, through the analyzer: class and rank, every time the same.

`python -m job.tests.faults --record job/tests/recordings` makes them; the number in a
name is the faulty rank's.
"""

from __future__ import annotations

import json

import pytest

from job.benchmarks import RESULTS
from job.tests.faults import compare, matrix_page
from job.tests.faults.cases import CASES
from job.tests.faults.recorded import analyzed, polls_of, subject
from job.tests.faults.verdicts import is_notice, is_right
from job.tests.faults.watch import is_finding

pytestmark = pytest.mark.xdist_group("recordings")  # one process analyzes each, once

RECORDINGS = sorted(matrix_page.RECORDINGS.glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.partition(".")[0])
def test_the_fault_is_named(path):
    case, rank = subject(path)
    told = [finding for poll in polls_of(path) for finding in poll.findings]
    found = list(filter(is_finding, told))
    wrong = [finding for finding in found if not is_right(case, rank, finding)]
    assert not wrong, f"{wrong[0].code} {wrong[0].suspects}: {wrong[0].summary}; {wrong[0].evidence}"
    assert bool(found) == bool(case.codes)
    if case.evidence:
        assert any(case.evidence in fact for finding in found for fact in finding.evidence)
    if case.notice:
        assert any(is_notice(case, rank, finding) for finding in told)


@pytest.mark.parametrize("path", RECORDINGS[::8], ids=lambda path: path.name.partition(".")[0])
def test_a_replay_is_the_same_every_time(path):
    assert analyzed(path) == polls_of(path)


def test_every_case_has_a_recording():
    assert {subject(path)[0].name for path in RECORDINGS} == {case.name for case in CASES}


def test_the_comparison_is_that_of_its_results_and_of_the_recordings():
    results = json.loads((RESULTS / "diagnosis-comparison.json").read_text())
    page = (RESULTS / "diagnosis-comparison.md").read_text()
    assert compare.PAGE.render(results, RESULTS) == page, "run python -m job.tests.faults.compare --page"
    shown = {row["case"] for row in results["rows"]} | results["skipped"].keys()
    assert shown == {case.name for case in CASES if case.kind != "none"}
