"""The analyzer's directory: what it writes there is read back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
from pathlib import Path

import pytest

from job.tests.support.hung_job import hang
from tensorwire.errors import CorruptDataError
from tensorwire_job.model import Confidence, Finding, Observation
from tensorwire_job.service import journal as journals
from tensorwire_job.service.journal import Journal, read_state


def seen() -> Observation:
    return dataclasses.replace(hang()[-1], time=100.0)


def found(code: str = "TW-H1", **more: object) -> Finding:
    fields = {"suspects": [1], "sides": [], "process_group": "default_pg", "summary": "s", "evidence": ["e"]}
    return Finding(code, "finding", 99.0, **{**fields, "confidence": Confidence.HIGH, **more})  # type: ignore[arg-type]


def test_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    observation = seen()
    observation.silent_nodes = ["gone"]
    findings = [found(stacks={1: "stack <script>"})]
    with contextlib.closing(Journal(tmp_path / "job")) as journal:
        journal.write(observation, findings)
    read, read_findings, _ = read_state(tmp_path / "job")
    assert read_findings == findings
    assert (read.time, read.run_id, read.world_size, read.silent_nodes) == (100.0, "run", 4, ["gone"])
    assert read.ranks[1].process_groups[0].operation == observation.ranks[1].process_groups[0].operation
    assert [p.name for p in (tmp_path / "job").iterdir() if "new" in p.name] == []


STATE = {"version": 1, "time": 1.0, "run": "r", "world_size": 4, "silent_nodes": [], "nodes": {}, "findings": []}
FINDING = dataclasses.asdict(Finding("TW-H1", "finding", 1.0, [1], [], "c", "s", ["e"], Confidence.HIGH))


@pytest.mark.parametrize(
    "content",
    [
        "", "{}", "[1]", '{"version": 99}', '{"version": 1, "nodes": {"a": 5}}', "[" * 10**5,
        json.dumps({**STATE, "time": float("inf")}), json.dumps({**STATE, "world_size": 1 << 40}),
        json.dumps({**STATE, "findings": [{**FINDING, "code": "TW-H9"}]}),
        json.dumps({**STATE, "findings": [{**FINDING, "suspects": ["x"]}]}),
        json.dumps({**STATE, "findings": [{**FINDING, "confidence": "sure"}]}),
    ],
)  # fmt: skip
def test_state_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(CorruptDataError, match=r"state\.json"):
        read_state(tmp_path)


def test_findings_are_logged_when_they_come_and_with_their_stacks(tmp_path: Path) -> None:
    with contextlib.closing(Journal(tmp_path)) as journal:
        for findings in ([], [found()], [found(confidence=Confidence.MEDIUM)], [found(stacks={1: "x"})], [], [found()]):
            journal.write(seen(), findings)
    lines = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    assert [line["stacks"] for line in lines] == [{}, {"1": "x"}, {}]
    assert {line["code"] for line in lines} == {"TW-H1"}


def test_finding_that_found_no_room_is_logged_later(tmp_path: Path) -> None:
    log = tmp_path / "findings.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.closing(Journal(tmp_path)) as journal:
        journal.write(seen(), [found()])
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 10, hard))
        try:
            with pytest.raises(OSError, match="large"):
                journal.write(seen(), [found(suspects=[2])])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        journal.write(seen(), [found(suspects=[2])])
    assert [json.loads(line)["suspects"] for line in log.read_text().splitlines()] == [[1], [2]]


def test_log_of_findings_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_MAX_FINDINGS_NBYTES", 2000)
    with contextlib.closing(Journal(tmp_path)) as journal:
        for number in range(100):
            journal.write(seen(), [found(suspects=[number])])
    assert sum(path.stat().st_size for path in tmp_path.glob("findings*")) < 6000
    last = (tmp_path / "findings.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["suspects"] == [99]
