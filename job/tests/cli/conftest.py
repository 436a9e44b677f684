"""Fixtures of the tests of the command line."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job.tests.support.fake_job import StillClock
from tensorwire_job.cli import arguments, main
from tensorwire_job.service import follow, job_directory, without_probe
from tensorwire_job.service.job_directory import JobHere
from tests.support.command_line import Ran

if TYPE_CHECKING:
    from collections.abc import Iterator

    from job.tests.support.fake_job import FakeJob
    from tensorwire_job.model import Thresholds
    from tests.support.command_line import Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_main(*args: object) -> Ran:
        code = main([str(argument) for argument in args])
        return Ran(code, *capsys.readouterr())

    return run_main


@pytest.fixture(autouse=True)
def unseen(monkeypatch: pytest.MonkeyPatch) -> list[without_probe.UnseenJob]:
    """What runs on the machine of the test without the probe: what a test puts into it."""
    jobs: list[without_probe.UnseenJob] = []
    monkeypatch.setattr(without_probe, "unseen_jobs", lambda: jobs)
    return jobs


@pytest.fixture
def key(tmp_path: Path) -> str:
    """The path of a key file."""
    path = tmp_path / "job.key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeJob]]:
    """A list: the commands open the job that a test puts into it, by a clock on which no work takes time."""
    jobs: list[FakeJob] = []

    @contextmanager
    def open_job(
        directory: Path | None, analyzer_directory: Path | None, thresholds: Thresholds
    ) -> Iterator[tuple[FakeJob, Path]]:
        jobs[0].thresholds = thresholds
        yield jobs[0], Path("a-job")
        jobs[0].closed = True

    monkeypatch.setattr(arguments, "open_job", open_job)
    jobs_here = [JobHere(Path("a-job"))], list[JobHere]()
    monkeypatch.setattr(job_directory, "jobs_here", lambda directory, with_old: jobs_here)
    monkeypatch.setattr(follow, "_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(follow, "JITTER", (1, 1))
    monkeypatch.setattr(follow, "time", StillClock())
    yield jobs
    assert jobs[0].closed
