"""--on-finding of watch and of the analyzer: real commands, real pages."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job.tests.support.fake_job import FakeJob
from job.tests.support.frozen_job import pages as pages
from job.tests.support.hung_job import hang, not_entered
from tensorwire_job.cli import arguments
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.support.command_line import Run

HUNG = [hang()[24:], [not_entered()]]
PROGRAM = [sys.executable, "-m", "tensorwire_job.cli"]


def writes(path: Path) -> str:
    """A command that appends what it is given to a file."""
    return shlex.join(["sh", "-c", f'cat >> {path}; echo "$TENSORWIRE_FINDING_CODE" >> {path}'])


def test_a_job_without_a_directory_is_told_by_its_run(tmp_path: Path) -> None:
    """As by an analyzer that keeps no findings."""
    told = tmp_path / "told"
    with arguments.finding_command(shlex.split(writes(told)), pytest.fail, None) as take:
        take("0123456789abcdef", [replace(not_entered(), stacks={})])
    assert json.loads(told.read_text().splitlines()[0])["job"] == "0123456789abcdef"


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_watch_runs_the_command_once(opened: list[FakeJob], run: Run, tmp_path: Path, output: list[str]) -> None:
    opened.append(FakeJob(*HUNG))
    told = tmp_path / "told"
    options = ["--interval", "0.1", "--for", "0.45", "--on-finding", writes(told)]
    code, out, err = run("watch", *options, *output)
    assert (code, err) == (3, "")
    assert out.count("TW-H1") >= 1, "what watch prints stays as it is"
    document, after = told.read_text().splitlines()
    assert json.loads(document)["summary"] == not_entered().summary
    assert after == "TW-H1"


def test_command_that_fails_does_not_end_the_watch(opened: list[FakeJob], run: Run) -> None:
    opened.append(FakeJob(*HUNG))
    options = ["--interval", "0.1", "--for", "0.45", "--on-finding", "sh -c 'echo no such channel >&2; exit 5'"]
    code, out, err = run("watch", *options)
    assert (code, out.count("\n")) == (3, 1)
    assert err == "tensorwire-job: the command of --on-finding failed: exit code 5: no such channel\n"
    assert opened[0].num_polls == 5


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("", "expected a program that can be run"),
        ("no-such-program-anywhere x", "expected a program that can be run"),
        ("sh -c 'open", "No closing quotation"),
    ],
)
@pytest.mark.parametrize("follower", [["watch"], ["analyzer", "--key-file", __file__]])
def test_command_that_cannot_be_run_is_told_at_the_start(
    run: Run, follower: list[str], command: str, complaint: str
) -> None:
    code, out, err = run(*follower, "--on-finding", command)
    assert (code, out) == (2, "")
    assert "'--on-finding'" in err
    assert complaint in err


def test_watch_of_real_pages(pages: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    options = ["--dir", str(pages), "--hang-seconds", "30", "--interval", "0.2", "--on-finding", writes(told)]
    with subprocess.Popen([*PROGRAM, "watch", *options], stdout=subprocess.PIPE, text=True) as watch:
        try:
            assert watch.stdout is not None
            assert "TW-H1" in watch.stdout.readline()
            wait_for(lambda: told.exists() and told.read_text().count("\n") >= 2, 30)
            watch.send_signal(signal.SIGTERM)
            assert watch.wait(timeout=20) == 3
        finally:
            watch.kill()
    document, _ = told.read_text().splitlines()
    finding = json.loads(document)
    assert (finding["job"], finding["code"], finding["suspects"]) == (str(pages), "TW-H1", [1])
    assert set(finding["stacks"]) == {"1"}, "it is run once the finding has its stacks"
