"""diagnose and report after the fact: jobs that are over, and recordings."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from job.tests.support.fake_job import FakeJob
from job.tests.support.hung_job import hang, not_entered
from tensorwire_job import diagnose, model
from tensorwire_job.service.recording import RecordingWriter

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import Run


def test_of_a_job_that_is_over_its_age_comes_first(opened: list[FakeJob], run: Run, tmp_path: Path) -> None:
    observations = hang()[26:]
    for observation in observations:
        for number, rank in observation.ranks.items():
            rank.process.life, rank.process.gone_seconds = "lost", 6540.0 + number
    lost = dataclasses.replace(not_entered(), code="TW-LOST", summary="rank 2 ended", since=1000.0)
    opened.append(FakeJob(observations, [lost]))
    code, out, _ = run("diagnose")
    assert code == 3
    title, _, first, second = out.splitlines()[:4]
    ended = "ended 1 h 49 min ago"
    assert title == f"a-job, {ended}, 4 ranks; a job that started seconds ago cannot be seen yet"
    assert first == "rank 2 ended"
    assert re.fullmatch(r"  .* ago; high confidence: right in 32 of 36 faults .* \(TW-LOST, lost process\)", second)
    assert "  next: sudo dmesg -T | grep -i 'killed process'" in out.splitlines(), "it left no exit reason"
    opened[:] = [FakeJob(observations, [])]
    code, out, _ = run("report", "-o", tmp_path / "a.html")
    assert (code, out.splitlines()[0]) == (0, f"the job {ended}; one that started seconds ago cannot be seen yet")
    assert "No finding: the job ended 1 h 49 min ago" in (tmp_path / "a.html").read_text()


def test_ranks_at_one_place_share_a_stack(opened: list[FakeJob], run: Run) -> None:
    stacks = {
        n: f'Thread 0x00007f{n}1 (most recent call first):\n  File "a.py" in {"lock" if n == 2 else "wait"}'
        for n in range(4)
    }
    opened.append(FakeJob(hang(), [dataclasses.replace(not_entered(), stacks=stacks)]))
    _, out, _ = run("diagnose")
    assert [line.strip() for line in out.splitlines() if "stack of" in line] == [
        "stack of ranks 0-1, 3:",
        "stack of rank 2:",
    ]


def test_report_of_a_recording(run: Run, tmp_path: Path) -> None:
    """The analyzer is a real one here, and draws its own conclusion."""
    recording = tmp_path / "recording.jsonl.gz"
    with RecordingWriter(recording) as recorder:
        for observation in hang(culprit=3, seconds=60):
            recorder.write(observation)
        recorder.add_stack(3, "in load_batch")
    path = tmp_path / "monday.html"
    assert run("report", "--recording", recording, "-o", path)[0] == 0, "a minute is no hang, for an analyzer"
    assert "No finding" in path.read_text()
    code, out, err = run("report", "--recording", recording, "-o", path, "--force", "--hang-seconds", 30)
    assert (code, err) == (3, "")
    assert "TW-H1" in out
    assert "rank 3 has not entered" in path.read_text()
    recording.write_bytes(b"no recording")
    code, out, err = run("report", "--recording", recording, "-o", path, "--force")
    assert (code, out) == (1, "")
    assert "recording.jsonl.gz" in err
    assert "rank 3 has not entered" in path.read_text(), "the old page stays"


def test_a_recording_is_analyzed_with_the_thresholds_of_its_analyzer(run: Run, tmp_path: Path) -> None:
    recording, path = tmp_path / "recording.jsonl.gz", tmp_path / "page.html"
    with RecordingWriter(recording, model.Thresholds(hang_seconds=5.0, slow_seconds=7.0)) as recorder:
        for observation in hang(culprit=3, seconds=60):
            recorder.write(observation)
    code, out, err = run("report", "--recording", recording, "-o", path)
    assert (code, err) == (3, "")
    assert "TW-H1" in out
    assert "thresholds (of the recording): hang 5 s, slow 7 s" in out
    assert "Thresholds (of the recording): hang 5 s, slow 7 s" in path.read_text()
    assert run("report", "--recording", recording, "-o", path, "--force", "--hang-seconds", 300)[0] == 0
    (finding,) = diagnose(recording=recording)
    assert (finding.code, finding.suspects) == ("TW-H1", [3])
    assert diagnose(recording=recording, hang_seconds=300.0) == []
