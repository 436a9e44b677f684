"""watch, diagnose and report: what they print of a job, where, and their exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from job.tests.support.fake_job import FakeJob
from job.tests.support.hung_job import hang, not_entered, write_state
from tensorwire_job import model
from tensorwire_job.report.codes import MEANINGS
from tensorwire_job.service import follow
from tensorwire_job.service.recording import RecordingWriter

if TYPE_CHECKING:
    from tests.support.command_line import Run

NOTICE = dataclasses.replace(
    not_entered(), level="notice", summary="ranks wait for rank 0, which declared a checkpoint"
)
HEALTHY = [hang(seconds=12)]
HUNG = [hang()[24:], [not_entered()]]


def test_diagnose_names_the_rank(opened: list[FakeJob], run: Run) -> None:
    opened.append(FakeJob(*HUNG))
    code, out, err = run("diagnose")
    assert (code, err) == (3, "")
    lines = out.splitlines()
    finding = not_entered()
    assert lines[:3] == ["a-job, running, 4 ranks", "", finding.summary]
    how_sure = "high confidence: right in 91 of 94 faults that it had not met before"
    assert re.fullmatch(rf"  for [\d.]+ s; {how_sure} \(TW-H1, not-entered hang\)", lines[3])
    assert [line for line in lines if line.startswith("  evidence: ")] == [f"  evidence: {e}" for e in finding.evidence]
    at = lines.index("  stack of rank 2:")
    assert lines[at + 1].strip() == 'File "train.py", line 41, in load_batch'
    suspect = hang()[-1].ranks[2]
    assert f"  next: py-spy dump --locals --pid {suspect.pid}    (pip install py-spy)" in lines
    stuck = ["in", "all_reduce", "#121", "of", "default_pg"]
    rows = [line.split() for line in lines if "all_reduce #121 of default_pg " in line]
    assert rows[0] == ["not", *stuck, "1", "14", "s", "2"]
    assert rows[1] == ["waits", *stuck, "3", "14", "s", "0-1,", "3"]
    assert lines[-2:] == ["a-job: 4 ranks, 4 running", "thresholds: hang 30 s, slow 10 s, factor 3, lost 10 s"]
    assert opened[0].num_polls == 3, "one poll without the finding, two with it"


def test_diagnose_of_a_healthy_job(opened: list[FakeJob], run: Run) -> None:
    opened.append(FakeJob(HEALTHY[0], []))
    code, out, err = run("diagnose", "--for", "0.05")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "no finding"


def test_a_wait_that_is_no_hang_yet(opened: list[FakeJob], run: Run) -> None:
    opened.append(FakeJob(hang()[24:25], []))
    code, out, _ = run("diagnose", "--for", "0", "--hang-seconds", "45")
    assert code == 0
    last = out.splitlines()[-1]
    assert last == "no finding: the longest wait is 12 s, a hang is one of more than 45 s (--hang-seconds)"


def timed(observations: list[model.Observation]) -> list[model.Observation]:
    """The same while ranks time their operations."""
    for observation in observations:
        for rank in observation.ranks.values():
            rank.timed = True
    return observations


@pytest.mark.parametrize("command", [["diagnose"], ["report", "-o", "x.html"]])
def test_an_answer_that_is_due_is_waited_for(
    opened: list[FakeJob],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    slow = dataclasses.replace(not_entered(time=1014.0), code="TW-S1", summary="rank 2 comes late")
    opened.append(FakeJob(timed(hang(seconds=12)[10:]), [slow]))
    code, out, _ = run(*command, "--for", "0")
    assert (code, "rank 2 comes late" in out) == (3, True)
    assert opened[0].num_polls == 5, "until the answer came"


def test_an_answer_that_does_not_come_is_not_waited_for_long(
    opened: list[FakeJob], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_ANSWER_SECONDS", 0.05)
    opened.append(FakeJob(timed(hang(seconds=12)), []))
    assert run("diagnose", "--for", "0.05")[0] == 0


def test_a_stack_that_is_on_its_way_is_waited_for(opened: list[FakeJob], run: Run) -> None:
    opened.append(FakeJob(*HUNG))
    opened[0].num_polls_until_stacks = 6
    assert run("diagnose", "--for", "0")[0] == 3
    assert opened[0].num_polls == 6


def test_a_notice_is_no_finding(opened: list[FakeJob], run: Run) -> None:
    opened.append(FakeJob(HUNG[0], [NOTICE]))
    code, out, _ = run("diagnose", "--for", "0.05")
    assert code == 0
    assert re.search(
        rf"{re.escape(NOTICE.summary)}\n  for [\d.]+ s; high confidence \(TW-H1, not-entered hang, notice: the exit",
        out,
    )
    assert "next:" not in out


def test_diagnose_as_json(opened: list[FakeJob], run: Run) -> None:
    opened.append(FakeJob(*HUNG))
    code, out, err = run("diagnose", "--json")
    assert (code, err) == (3, "")
    assert out.count("\n") == 1
    document = json.loads(out)
    (value,) = document["jobs"]
    assert (document["ended"], document["without_probe"], value["directory"]) == ([], [], "a-job")
    assert (value["script"], value["started"], value["counts"]) == ("", None, True)
    (finding,) = value["findings"]
    assert (finding["code"], finding["suspects"], finding["confidence"]) == ("TW-H1", [2], "high")
    assert set(finding["stacks"]) == {"2"}
    assert value["lives"] == {"running": 4, "stopped": 0, "exited": 0, "lost": 0, "unseen": 0}
    assert [(group["state"], group["ranks"], group["num_ranks"]) for group in value["rank_status"]] == [
        ("absent", "2", 1), ("waits", "0-1, 3", 3),
    ]  # fmt: skip
    assert [place["rank"] for place in value["slowest"]] == [2]


@pytest.mark.parametrize("command", ["watch", "diagnose", "report"])
def test_thresholds_are_options(opened: list[FakeJob], run: Run, tmp_path: Path, command: str) -> None:
    opened.append(FakeJob(HEALTHY[0], []))
    output = ["-o", tmp_path / "x.html"] if command == "report" else []
    assert run(command, "--for", "0", *output)[0] == 0
    asked = {} if command == "watch" else {"hang_seconds": 30.0, "slow_seconds": 10.0}
    assert opened[0].thresholds == model.Thresholds(**asked)
    given = ("--hang-seconds", 7, "--slow-seconds", 3, "--slow-factor", 2)
    given += ("--compute-share", 0.8, "--transfer-share", 0.2, "--lost-seconds", 4)
    assert run(command, "--for", "0", *given, *output, *(["--force"] if output else []))[0] == 0
    assert opened[0].thresholds == model.Thresholds(7, 3, 2, 0.8, 0.2, 4)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["diagnose", "--compute-share", "0.2"], "transfer_share below compute_share, got 0.3 and 0.2"),
        (["watch", "--slow-factor", "0"], "x>0"),
        (["watch", "--interval", "0"], "x>=0.1"),
        (["report", "-o", "no/such/directory/x.html"], "no directory 'no/such/directory': make it first"),
        (["report", "--recording", "no/such/file"], "no/such/file"),
        (["report", "--recording", __file__, "--dir", "."], "got both"),
        (["watch", "--analyzer-dir", ".", "--dir", "."], "got both"),
        (["agent", "--analyzer", "nowhere", "--key-file", __file__], "expected HOST:PORT, got 'nowhere'"),
        (["analyzer"], "--key-file"),
    ],
)
def test_usage_errors(run: Run, arguments: list[str], advice: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert advice in err
    assert "--help" in err.splitlines()[1]


def test_nothing_to_read_says_how_to_start(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENSORWIRE_PROBE_DIR", str(tmp_path))
    given = tmp_path / "given"
    for arguments, named in (((), tmp_path), (("--dir", given), given)):
        for command in ("watch", "diagnose"):
            code, out, err = run(command, *arguments)
            assert (code, out) == (1, "")
            assert err.startswith(
                f"tensorwire-job: {str(named)!r}: no job with the probe; start one with torchrun ARGS -m "
            )
            assert "--dir" in err
    for command in ("watch", "diagnose"):
        code, out, err = run(command, "--analyzer-dir", tmp_path)
        assert (code, out) == (1, "")
        assert err.startswith(f"tensorwire-job: {str(tmp_path)!r}: no analyzer has written here; start one with")
    page = tmp_path / "x.html"
    assert run("report", "-o", page)[0] == 1
    assert not page.exists()
    code, out, _ = run("diagnose", "--json")
    assert code == 1
    assert json.loads(out)["error"]["kind"] == "FileNotFoundError"
    (tmp_path / "state.json").write_text("{}")
    assert run("diagnose", "--analyzer-dir", tmp_path)[0] == 1


@pytest.fixture
def analyzed(tmp_path: Path) -> Path:
    """The directory of an analyzer that has seen a job hang."""
    write_state(tmp_path / "analyzer")
    return tmp_path / "analyzer"


def test_an_analyzer_is_asked(analyzed: Path, run: Run) -> None:
    code, out, err = run("diagnose", "--analyzer-dir", analyzed, "--for", 0)
    assert (code, err) == (3, "")
    assert out.startswith(f"{analyzed}, running, 4 ranks\n\n{not_entered().summary}\n  for 14 s; high confidence")
    code, out, err = run("watch", "--analyzer-dir", analyzed, "--interval", "0.1", "--for", "0.3", "--json")
    assert (code, err, out.count("\n")) == (3, "", 1), "one line for what it wrote once"


def test_an_analyzer_that_fell_silent(analyzed: Path, run: Run) -> None:
    before = time.time() - 125
    os.utime(analyzed / "state.json", (before, before))
    code, _, err = run("diagnose", "--analyzer-dir", analyzed, "--for", 0)
    assert (code, err) == (3, "tensorwire-job: the analyzer wrote this 2 min 5 s ago and nothing since\n")


def test_an_analyzer_has_its_own_thresholds(analyzed: Path, run: Run) -> None:
    code, out, err = run("watch", "--analyzer-dir", analyzed, "--slow-factor", 2)
    assert (code, out) == (2, "")
    assert "--slow-factor has no effect with --analyzer-dir; give it to tensorwire-job analyzer" in err


def test_the_manual_explains_every_code_threshold_and_metric(repository: Path) -> None:
    findings = (repository / "job/docs/findings.md").read_text()
    manual = (repository / "job/docs/setup.md").read_text()
    assert set(MEANINGS) == set(get_args(model.Code))
    for code, meaning in MEANINGS.items():
        section = findings.partition(f"\n## {code}: {meaning.title}\n")[2].partition("\n## ")[0]
        parts = [part for part in ("What", "Why", "Evidence", "What to do") if f"**{part}.** " in section]
        assert parts == ["What", "Why", "Evidence", "What to do"], code
        assert meaning.what in section.replace("\n", " "), code
    for name, default in dataclasses.asdict(model.Thresholds()).items():
        assert f"| `--{name.replace('_', '-')}` | {default:g} |" in manual
    defaults = dataclasses.asdict(model.Thresholds())
    for name, asked in dataclasses.asdict(model.ASKED).items():
        if asked == defaults[name]:
            continue
        row = manual.partition(f"| `--{name.replace('_', '-')}` |")[2].partition("\n")[0]
        assert f"`diagnose` and `report` use {asked:g}:" in row
    metrics = (repository / "job/src/tensorwire_job/service/metrics.py").read_text()
    names = re.findall(r'_(?:gauge|labelled)\(\s*"(\w+)"', metrics)
    names += [f"{name}_total" for name in re.findall(r'_counter\("(\w+)"', metrics)]
    assert len(names) >= 9
    assert [name for name in names if f"`tensorwire_{name}" not in manual] == []


def test_pages_that_cannot_be_read_are_no_good_news(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rank-0-0.page").write_bytes(bytes(4096))
    for command in (["diagnose"], ["report", "-o", tmp_path / "x.html"]):
        code, out, err = run(*command, "--dir", tmp_path, "--for", 0)
        assert (code, out) == (1, "")
        assert "no rank is in view" in err
    assert not (tmp_path / "x.html").exists()


def test_watch_in_a_pipe_prints_each_finding_once(opened: list[FakeJob], run: Run) -> None:
    opened.append(FakeJob(*HUNG))
    code, out, err = run("watch", "--interval", "0.1", "--for", "0.45")
    assert (code, err) == (3, "")
    (line,) = out.splitlines()
    assert line.partition(" ")[2] == f"TW-H1 high confidence: {not_entered().summary}"
    assert opened[0].num_polls == 5


def test_watch_streams_json(opened: list[FakeJob], run: Run) -> None:
    opened.append(FakeJob(*HUNG))
    code, out, err = run("watch", "--json", "--interval", "0.1", "--for", "0.25")
    assert (code, err) == (3, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [len(line["findings"]) for line in lines] == [0, 1, 1]
    assert [line["time"] for line in lines] == [1024.0, 1025.0, 1026.0]


def test_interrupting_watch_is_no_error(opened: list[FakeJob], run: Run) -> None:
    opened.append(FakeJob(HEALTHY[0], []))
    opened[0].interrupt_after = 2
    assert run("watch", "--interval", "0.1") == (0, "", "")
    opened[0] = FakeJob(*HUNG)
    opened[0].interrupt_after = 4
    code, out, err = run("watch", "--interval", "0.1")
    assert (code, err, out.count("\n")) == (3, "", 1)


def test_watch_ends_with_the_job(opened: list[FakeJob], run: Run) -> None:
    ended = hang(seconds=12)
    for number, rank in ended[-1].ranks.items():
        rank.process = model.Process("exited", exit_reason="exit 0", gone_seconds=30.0 + number)
    opened.append(FakeJob(ended[-2:], []))
    assert run("watch", "--interval", "0.1") == (0, "", "")
    assert opened[0].num_polls == 2


def test_report_writes_a_page(opened: list[FakeJob], run: Run, tmp_path: Path) -> None:
    opened.append(FakeJob(*HUNG))
    path = tmp_path / "hang.html"
    code, out, err = run("report", "-o", path, "--for", "0.1")
    assert (code, err) == (3, "")
    used = "thresholds: hang 30 s, slow 10 s, factor 3, lost 10 s"
    told, *rest = out.splitlines()
    assert re.fullmatch(rf"TW-H1 high confidence, for [\d.]+ s: {re.escape(not_entered().summary)}", told)
    assert rest == [used, f"wrote {path}"]
    assert "rank 2 has not entered all_reduce #121" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]
    page = path.read_text()
    code, out, err = run("report", "-o", path)
    assert (code, out) == (2, "")
    assert path.read_text() == page
    code, out, _ = run("report", "-o", path, "-f", "--for", "0", "--json")
    assert (code, json.loads(out)["path"], json.loads(out)["thresholds"]["hang_seconds"]) == (3, str(path), 30.0)


def test_report_of_text_that_no_file_can_hold(run: Run, tmp_path: Path) -> None:
    recording, page = tmp_path / "recording.jsonl.gz", tmp_path / "page.html"
    with RecordingWriter(recording) as recorder:
        for observation in hang(seconds=3):
            observation.ranks[0].phase = "\ud800"
            recorder.write(observation)
    assert run("report", "--recording", recording, "-o", page)[::2] == (0, "")
    assert "(\\ud800)" in page.read_text()
