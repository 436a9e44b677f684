"""diagnose without --dir: every job of the user that is there, and the exit code of the worst."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job.tests.support.fake_job import StillClock
from job.tests.support.frozen_job import write_pages
from tensorwire_job.node import stacks
from tensorwire_job.page import native
from tensorwire_job.service import follow, job_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.command_line import Run

JUDGED_SECONDS = 100.0  # in the place of an hour: the machine of the test may run for less
DEAD = """
import pathlib, sys
from job.tests.support.frozen_job import write_pages
from tensorwire_job.page import native
for handle in write_pages(pathlib.Path(sys.argv[1]), sys.argv[1]):
    native.exit_reason(handle, native.FAILURE, b"ValueError: no such file")
"""


class Jobs:
    """Jobs of one user on one machine, in the order in which they were started.

    All ranks of the living ones are one process, which so is a rank of several jobs: that mixes up nothing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.handles: list[int] = []

    def hung(self, name: str, *, hangs: bool = True) -> Path:
        time.sleep(0.02)  # file systems count time in ticks
        self.handles += write_pages(self.root / name, name, hangs=hangs)
        return self.root / name

    def healthy(self, name: str) -> Path:
        return self.hung(name, hangs=False)

    def dead(self, name: str, *, seconds: float) -> Path:
        """One that failed so long ago."""
        time.sleep(0.02)
        path = self.root / name
        subprocess.run([sys.executable, "-c", DEAD, str(path)], check=True)
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
    hung, healthy = jobs.hung("hung"), jobs.healthy("healthy")
    code, named, ended = ask(run, "--hang-seconds", 30)
    assert (code, named[0], ended) == (3, ("hung", ["TW-H1"]), [])
    assert [name for name, _ in named] == ["hung", "healthy"], "the worst comes first"
    code, out, _ = run("diagnose", "--for", 0)
    assert code == 3
    lines = out.splitlines()
    assert lines[0] == f"job 1 of 2: {hung}"
    assert "rank 1 has not entered all_reduce #8 of default_pg" in lines[1]
    assert f"job 2 of 2: {healthy}" in lines
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


def test_an_older_one_is_told_and_does_not_count(jobs: Jobs, run: Run) -> None:
    dead = jobs.dead("dead", seconds=JUDGED_SECONDS + 20)
    jobs.healthy("alive")
    assert ask(run, "--hang-seconds", 3600) == (0, [("alive", [])], ["dead"])
    _, out, _ = run("diagnose", "--for", 0, "--hang-seconds", 3600)
    told = re.escape(str(dead)) + r": the job ended [\w ]+ ago, and is judged only if --dir names it"
    assert re.fullmatch(told, out.splitlines()[-1])
    assert ask(run, "--dir", dead)[0] == 3


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
