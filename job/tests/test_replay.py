"""Recordings of real jobs with a fault, through the analyzer: class and rank, every time the same.

`python -m job.tests.faults --record job/tests/recordings` makes them; the number in a
name is the faulty rank's.
"""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path

import pytest

from job.tests.faults import matrix_page
from job.tests.faults.cases import BY_NAME, CASES
from job.tests.faults.verdicts import is_notice, is_right, judge
from job.tests.faults.watch import Poll, is_finding
from tensorwire_job.service.recording import replay

pytestmark = pytest.mark.xdist_group("recordings")  # one process analyzes each, once

FOLDER = Path(__file__).parent / "recordings"
RECORDINGS = sorted(FOLDER.glob("*.jsonl.gz"))


def parts(path: Path) -> tuple[str, int]:
    match = re.fullmatch(r"(.+)-(\d)\.jsonl\.gz", path.name)
    assert match is not None, path
    return match[1], int(match[2])


def analyzed(path, thresholds):
    return [Poll(observation.time, findings) for observation, findings in replay(path, thresholds)]


@cache
def polls_of(path):
    return analyzed(path, BY_NAME[parts(path)[0]].thresholds)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.partition(".")[0])
def test_the_fault_is_named(path):
    name, rank = parts(path)
    case = BY_NAME[name]
    told = [finding for poll in polls_of(path) for finding in poll.findings]
    found = list(filter(is_finding, told))
    wrong = [finding for finding in found if not is_right(case, rank, finding)]
    assert not wrong, f"{wrong[0].code} {wrong[0].suspects}: {wrong[0].summary}; {wrong[0].evidence}"
    assert bool(found) == bool(case.codes)
    if case.evidence:
        assert any(case.evidence in fact for finding in found for fact in finding.evidence)
    if case.notice:
        assert any(is_notice(case, rank, finding) for finding in told)


def test_the_table_of_confidence_is_that_of_the_recordings_now():
    rows = []
    for path in RECORDINGS:
        name, rank = parts(path)
        polls = polls_of(path)
        rows.append({"levels": judge(BY_NAME[name], rank, polls, polls[0].time).levels})
    assert json.loads(matrix_page.JSON.read_text())["recorded"] == matrix_page.count(rows)


@pytest.mark.parametrize("path", RECORDINGS[::8], ids=lambda path: path.name.partition(".")[0])
def test_a_replay_is_the_same_every_time(path):
    assert analyzed(path, BY_NAME[parts(path)[0]].thresholds) == polls_of(path)


@pytest.mark.parametrize("path", RECORDINGS[::8], ids=lambda path: path.name.partition(".")[0])
def test_a_recording_that_breaks_off_is_read_up_to_there(path, tmp_path):
    text = gzip.decompress(path.read_bytes())
    cut = tmp_path / path.name
    cut.write_bytes(gzip.compress(text[: len(text) // 2]))
    half = analyzed(cut, BY_NAME[parts(path)[0]].thresholds)
    assert 0 < len(half) < len(polls_of(path))
    assert polls_of(path)[: len(half)] == half


def test_every_case_has_a_recording():
    assert {parts(path)[0] for path in RECORDINGS} == {case.name for case in CASES}
