"""diagnose without --dir: every job of the user that is there, and the exit code of the worst."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job.tests.support.fake_job import StillClock
from job.tests.support.frozen_job import write_pages
from tensorwire_job.cli import diagnose
from tensorwire_job.node import stacks
from tensorwire_job.page import native
from tensorwire_job.service import follow, job_directory
from tensorwire_job.service.without_probe import UnseenJob
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.command_line import Run

JUDGED_SECONDS = 100.0  # in the place of an hour: the machine of the test may run for less
DEAD = """
import pathlib, sys
from job.tests.support.frozen_job import write_pages
from tensorwire_job.page import native
for handle in write_pages(pathlib.Path(sys.argv[1]), sys.argv[1], script=sys.argv[2]):
    native.exit_reason(handle, native.FAILURE, b"ValueError: no such file")
"""


class Jobs:
    """Jobs of one user on one machine, in the order in which they were started.

    All ranks of the living ones are one process, which so is a rank of several jobs: that mixes up nothing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.handles: list[int] = []

    def hung(self, name: str, *, hangs: bool = True, script: str = "") -> Path:
        time.sleep(0.02)  # file systems count time in ticks
        self.handles += write_pages(self.root / name, name, hangs=hangs, script=script)
        return self.root / name

    def healthy(self, name: str, script: str = "") -> Path:
        return self.hung(name, hangs=False, script=script)

    def dead(self, name: str, *, seconds: float, script: str = "") -> Path:
        """One that failed so long ago."""
        time.sleep(0.02)
        path = self.root / name
        subprocess.run([sys.executable, "-c", DEAD, str(path), script], check=True)
        fields = [native.Header.heartbeat_ns, native.Header.pulse_ns, native.Header.exit_ns]
        for page in path.glob("rank-*.page"):
            with page.open("r+b") as file:
                for field in fields:
                    file.seek(field.offset)
                    file.write((native.now() - int(seconds * 1e9)).to_bytes(8, "little"))
        return path


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Jobs]:
    monkeypatch.setenv("TENSORWIRE_PROBE_DIR", str(tmp_path))
    assert job_directory._JUDGED_SECONDS == 3600.0
    monkeypatch.setattr(job_directory, "_JUDGED_SECONDS", JUDGED_SECONDS)
    monkeypatch.setattr(stacks, "_START_SECONDS", 0.05)  # no probe is there that could start a server
    made = Jobs(tmp_path)
    yield made
    for handle in made.handles:
        native.close(handle)


def ask(run: Run, *arguments: object) -> tuple[int, list[tuple[str, list[str]]], list[str]]:
    """The exit code, each job with its codes, and the names of those that are only told."""
    code, out, err = run("diagnose", "--json", "--for", 0, *arguments)
    assert err == ""
    document = json.loads(out)
    named = [
        (Path(job["directory"]).name, [finding["code"] for finding in job["findings"]]) for job in document["jobs"]
    ]
    return code, named, [Path(job["directory"]).name for job in document["ended"]]


def test_the_older_of_two_jobs_hangs(jobs: Jobs, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_INTERVAL_SECONDS", 0.1)
    jobs.hung("hung", script="code/train.py")
    healthy = jobs.healthy("healthy")
    code, named, ended = ask(run, "--hang-seconds", 30)
    assert (code, named[0], ended) == (3, ("hung", ["TW-H1"]), [])
    assert [name for name, _ in named] == ["hung", "healthy"], "the worst comes first"
    code, out, _ = run("diagnose", "--for", 0)
    assert code == 3
    lines = out.splitlines()
    started = r"started \d\d:\d\d"
    assert re.fullmatch(rf"job 1 of 2: train\.py, {started}, running, 4 ranks", lines[0])
    assert "rank 1 has not entered all_reduce #8 of default_pg" in lines[2]
    assert any(re.fullmatch(rf"job 2 of 2: {healthy}, {started}, running, 4 ranks", line) for line in lines)
    assert ask(run, "--dir", healthy)[0] == 0, "a job that is named is the only one"


def test_all_jobs_are_asked_in_the_time_of_one(jobs: Jobs, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StillClock()
    monkeypatch.setattr(follow, "time", clock)
    for name in ("a", "b", "c", "d"):
        jobs.healthy(name)
    run("diagnose", "--for", 20, "--hang-seconds", 3600)
    assert 15.0 < clock.seconds < 25.0


def test_a_job_that_ended_within_the_hour_counts(jobs: Jobs, run: Run) -> None:
    jobs.dead("dead", seconds=JUDGED_SECONDS - 60)
    jobs.healthy("alive")
    code, named, ended = ask(run, "--hang-seconds", 3600)
    assert (code, named, ended) == (3, [("dead", ["TW-LOST"]), ("alive", [])], [])


def test_a_job_that_has_just_ended_is_asked_until_its_ranks_count_as_lost(jobs: Jobs, run: Run) -> None:
    jobs.dead("dead", seconds=0.0)
    assert ask(run, "--lost-seconds", 1) == (3, [("dead", ["TW-LOST"])], [])


def test_an_older_one_is_told_and_does_not_count(jobs: Jobs, run: Run) -> None:
    dead = jobs.dead("dead", seconds=JUDGED_SECONDS + 20)
    jobs.healthy("alive")
    assert ask(run, "--hang-seconds", 3600) == (0, [("alive", [])], ["dead"])
    _, out, _ = run("diagnose", "--for", 0, "--hang-seconds", 3600)
    assert (
        out.splitlines()[-1] == "and 1 job that ended more than an hour ago; of them too: tensorwire-job diagnose --all"
    )
    assert ask(run, "--dir", dead)[0] == 3
    assert ask(run, "--all", "--hang-seconds", 3600) == (3, [("dead", ["TW-LOST"]), ("alive", [])], [])
    assert run("diagnose", "--all", "--dir", dead).code == 2


def test_a_job_that_ended_gets_a_line(jobs: Jobs, run: Run) -> None:
    dead = jobs.dead("dead", seconds=JUDGED_SECONDS - 60, script="old.py")
    jobs.healthy("alive", script="train.py")
    code, out, _ = run("diagnose", "--for", 0, "--hang-seconds", 3600)
    assert code == 3
    lines = out.splitlines()
    assert re.fullmatch(r"job 1 of 2: train\.py, started \d\d:\d\d, running, 4 ranks", lines[0])
    (line,) = (line for line in lines if line.startswith("job 2 of 2: "))
    assert re.fullmatch(
        r"job 2 of 2: old\.py, started \d\d:\d\d, ended [\w ]+ ago, 4 ranks: TW-LOST \w+ confidence, [\w ]+ ago: "
        r"all 4 ranks failed with ValueError: no such file; all of it: tensorwire-job diagnose --dir "
        + re.escape(str(dead)),
        line,
    )
    assert lines[-1] == line
    assert "evidence:" not in out
    assert "evidence:" in run("diagnose", "--for", 0, "--hang-seconds", 3600, "--all").out


@pytest.mark.parametrize(
    ("dead", "newer", "hangs", "code"),
    [
        ("train.py", "train.py", False, 0),  # it was mended and started again
        ("train.py", "train.py", True, 3),
        ("train.py", "other.py", False, 3),
        ("", "", False, 3),  # what is not known is not the same
    ],
)
def test_a_dead_job_whose_script_runs_well_again(
    jobs: Jobs, run: Run, dead: str, newer: str, hangs: bool, code: int
) -> None:
    jobs.dead("dead", seconds=JUDGED_SECONDS - 60, script=dead)
    jobs.hung("alive", hangs=hangs, script=newer)
    assert ask(run, "--hang-seconds", 30)[0] == code
    document = json.loads(run("diagnose", "--json", "--for", 0, "--hang-seconds", 30).out)
    counts = {Path(job["directory"]).name: job["counts"] for job in document["jobs"]}
    leaves_alone = bool(dead) and dead == newer and not hangs
    assert counts == {"alive": True, "dead": not leaves_alone}
    _, out, _ = run("diagnose", "--for", 0, "--hang-seconds", 30)
    assert ("the exit code is not of it" in out) == leaves_alone


def test_an_older_job_of_the_script_does_not_excuse_the_newest(jobs: Jobs, run: Run) -> None:
    jobs.healthy("alive", script="train.py")
    jobs.dead("dead", seconds=JUDGED_SECONDS - 60, script="train.py")
    assert ask(run, "--hang-seconds", 3600)[0] == 3


def test_what_runs_without_the_probe_is_told(jobs: Jobs, run: Run, unseen: list[UnseenJob]) -> None:
    unseen.append(UnseenJob(4711, "train.py", 4))
    told = (
        "train.py runs here without the probe (4 ranks, started by pid 4711); if it hangs, the stacks of its ranks "
        "tell something"
    )
    code, out, err = run("diagnose", "--for", 0)
    assert (code, out) == (1, "")
    assert err.startswith(f"tensorwire-job: {told}\n  next: mkdir -p stacks; for pid in $(pgrep -P 4711); do ")
    path = jobs.healthy("alive")
    note, following = run("diagnose", "--for", 0, "--hang-seconds", 3600).out.splitlines()[-2:]
    assert note == f"note: {told}"
    assert following.startswith("  next: mkdir -p stacks; ")
    assert told not in run("diagnose", "--for", 0, "--hang-seconds", 3600, "--dir", path).out
    document = json.loads(run("diagnose", "--for", 0, "--hang-seconds", 3600, "--json").out)
    assert document["without_probe"] == [{"pid": 4711, "script": "train.py", "num_ranks": 4}]


def test_what_takes_the_stacks_of_ranks_without_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho $@\n")
    (tmp_path / "tensorwire-job").write_text("#!/bin/sh\necho $@; ls $3; cat $3/*\n")
    for program in tmp_path.iterdir():
        program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with subprocess.Popen(["sh", "-c", "RANK=12 sleep 60 & wait"]) as launcher:
        wait_for(
            lambda: subprocess.run(["pgrep", "-P", str(launcher.pid)], stdout=subprocess.DEVNULL).returncode == 0, 10
        )
        command, _, _ = diagnose._take_stacks(UnseenJob(launcher.pid, "train.py", 1)).partition("    (")
        out = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        rank = int(subprocess.check_output(["pgrep", "-P", str(launcher.pid)]))
        os.kill(rank, signal.SIGKILL)
    expected = ["diagnose --stacks stacks", f"pid{rank}-rank12.txt", f"dump --full-filenames --pid {rank}"]
    assert out.splitlines() == expected


def test_the_newest_is_the_one_that_was_started_last(jobs: Jobs, run: Run) -> None:
    old = jobs.healthy("old", script="train.py")
    jobs.healthy("new", script="train.py")
    for page in old.glob("*.page"):  # what a file system on a disk does when it writes a page back
        page.chmod(0o600)
    assert job_directory.job_directory(None).name == "new"


def test_the_newest_counts_however_long_ago_it_ended(jobs: Jobs, run: Run) -> None:
    jobs.dead("first", seconds=240.0)
    jobs.dead("last", seconds=200.0)
    assert ask(run) == (3, [("last", ["TW-LOST"])], ["first"])


def test_pages_that_cannot_be_read_hide_no_other_job(jobs: Jobs, run: Run) -> None:
    jobs.hung("hung")
    damaged = jobs.root / "damaged"
    damaged.mkdir()
    (damaged / "rank-0-0.page").write_bytes(bytes(4096))
    code, out, err = run("diagnose", "--json", "--for", 0)
    assert code == 3
    assert [Path(job["directory"]).name for job in json.loads(out)["jobs"]] == ["hung"]
    assert err == f"tensorwire-job: {damaged} is skipped: no rank is in view\n"
