"""diagnose(): what a program gets that asks for the findings on a job."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import inspect
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from job.tests.support.frozen_job import pages as pages
from tensorwire.errors import CorruptDataError
from tensorwire_job import Finding, diagnose
from tensorwire_job.cli import diagnose as command
from tensorwire_job.model import ASKED, Thresholds

RECORDINGS = Path(__file__).parents[1] / "recordings"


def test_the_rank_that_others_wait_for_is_named(pages: Path) -> None:
    (finding,) = diagnose(pages, seconds=5.0)
    assert isinstance(finding, Finding)
    assert (finding.code, finding.level, finding.suspects, finding.victims) == ("TW-H1", "finding", [1], 3)
    assert finding.confidence == "high"
    assert "test_the_rank_that_others_wait_for_is_named" in finding.stacks[1], "this very process is the rank"
    assert diagnose(pages, seconds=0.0, hang_seconds=300.0) == [], "a minute is no hang beyond a higher gate"


def test_the_example_of_the_manual_runs(
    pages: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENSORWIRE_PROBE_DIR", str(pages))
    (example,) = re.findall(
        r"^```python\n(.*?)^```", (repository / "job/docs/index.md").read_text(), re.MULTILINE | re.DOTALL
    )
    exec(example, {})
    assert capsys.readouterr().out.startswith("TW-H1 [1] high rank 1 has not entered all_reduce #8 of default_pg;")


def test_it_may_be_called_from_several_threads(pages: Path) -> None:
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.extend(f.suspects for f in diagnose(str(pages), seconds=0.0)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1]] * 4


def test_a_recording_gives_all_that_was_found_on_the_way() -> None:
    (path,) = RECORDINGS.glob("h2-order-*.jsonl.gz")
    (finding,) = diagnose(recording=str(path), hang_seconds=3.0, slow_seconds=2.0, lost_seconds=2.0)
    assert (finding.code, finding.suspects) == ("TW-H2", [int(path.name[-10])])
    assert diagnose(recording=path) == [], "the recording ends before a hang is 30 s old"


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        ({}, ["TW-S3"]),
        ({"slow_factor": 100.0}, []),
        ({"compute_share": 0.4}, ["TW-S1"]),
        ({"transfer_share": 0.6}, ["TW-S2"]),
    ],
    ids=str,
)
def test_thresholds_that_are_given_decide_what_is_slow(given: dict[str, float], codes: list[str]) -> None:
    """About half of the lost time is late arrival."""
    path = RECORDINGS / "s3-one-3.jsonl.gz"
    found = diagnose(recording=path, hang_seconds=3.0, slow_seconds=2.0, lost_seconds=2.0, **given)
    assert [finding.code for finding in found] == codes


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"torchrun ARGS -m tensorwire_job"):
        diagnose(tmp_path)
    (tmp_path / "rank-0-0.page").write_bytes(bytes(4096))
    with pytest.raises(FileNotFoundError, match="no rank is in view"):
        diagnose(tmp_path, seconds=0.0)
    with pytest.raises(FileNotFoundError):
        diagnose(recording=tmp_path / "none")
    damaged = tmp_path / "recording.jsonl.gz"
    damaged.write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(CorruptDataError, match="expected a recording"):
        diagnose(recording=damaged)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directory": Path("a"), "recording": Path("b")}, "directory or recording, got both"),
        ({"seconds": -1.0}, "seconds of at least 0, got -1"),
        ({"seconds": float("nan")}, "seconds of at least 0, got nan"),  # it would poll without end
        ({"hang_seconds": 0.0}, "hang_seconds above 0, got 0"),
        ({"slow_factor": float("nan")}, "slow_factor above 0, got nan"),
        ({"transfer_share": 0.7}, "transfer_share below compute_share, got 0.7 and 0.7"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        diagnose(**options)


def test_the_options_are_those_of_the_command() -> None:
    parameters = inspect.signature(diagnose).parameters
    assert [name for name, each in parameters.items() if each.kind is not each.KEYWORD_ONLY] == ["directory"]
    ours = {name: each.default for name, each in parameters.items()}
    theirs = command.command.make_context("diagnose", []).params
    shared = ours.keys() & theirs.keys()
    assert shared == {"directory", "seconds", *(field.name for field in dataclasses.fields(Thresholds))}
    of_both = {name: ours[name] for name in shared if not hasattr(Thresholds, name)}
    assert of_both == {name: theirs[name] for name in of_both}
    names = [field.name for field in dataclasses.fields(Thresholds)]
    assert {ours[name] for name in names} == {None}, "those of the command, or recorded"
    assert {name: theirs[name] for name in names} == dataclasses.asdict(ASKED)


def test_damage_behind_the_first_lines_is_named_with_its_file(tmp_path: Path) -> None:
    report: dict[str, Any] = {kind: [] for kind in ("heads", "groups", "works", "links", "gone", "closed")}
    report |= {"clock": 1, "full": True, "ranks": base64.b64encode(b"123").decode(), "details": "", "edges": ""}
    lines = [
        {"format": "tensorwire recording", "version": 1},
        {"time": 1.0, "run": "r", "world_size": 2, "silent_nodes": [], "nodes": {"n": report}},
    ]
    path = tmp_path / "recording.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines)))
    with pytest.raises(CorruptDataError) as caught:
        diagnose(recording=path)
    assert caught.value.file == path
