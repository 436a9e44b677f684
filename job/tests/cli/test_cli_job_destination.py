"""What the commands replace, and what they leave alone."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job.tests.support.hung_job import hang, not_entered
from tensorwire_job.page import directory
from tensorwire_job.service.journal import Journal
from tests.support.destination_cells import snapshot

if TYPE_CHECKING:
    from tests.support.command_line import Run

RECORDING = Path(__file__).parents[1] / "recordings" / "healthy-1.jsonl.gz"


def test_reports(tmp_path: Path, run: Run) -> None:
    page, link = tmp_path / "x.html", tmp_path / "link.html"
    page.write_text("mine")
    link.symlink_to(page)
    before = snapshot(tmp_path)
    arguments = ("report", "--recording", RECORDING, "-o")
    for place, force, advice in (
        (page, (), "already exists; pass --force to replace it"),
        (link, (), "name"),
        (link, ("--force",), "is a link"),
        (tmp_path, ("--force",), "name the file"),
    ):
        ran = run(*arguments, place, *force)
        assert (ran.code, ran.out) == (2, "")
        assert advice in ran.err
    assert snapshot(tmp_path) == before
    assert run(*arguments, page, "--force").code == 0
    assert page.read_text().startswith("<!")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.html", "x.html"]


def put(row: str, path: Path, own: Path) -> None:
    """What stands where an analyzer would write: `own` is such a file of an earlier one."""
    outside = path.with_name("outside")
    if row == "its own file":
        shutil.copy(own, path)
    elif row == "another file":
        path.write_bytes(b"mine")
    elif row == "a link":
        shutil.copy(own, outside)
        path.symlink_to(outside)
    elif row == "a link that leads nowhere":
        path.symlink_to(outside)
    elif row == "a directory":
        path.mkdir()
    elif row == "a pipe":
        os.mkfifo(path)


@pytest.mark.parametrize("name", ["state.json", "findings.jsonl", "recording.jsonl.gz"])
@pytest.mark.parametrize(
    "row",
    ["nothing", "its own file", "another file", "a link", "a link that leads nowhere", "a directory", "a pipe"],
)
def test_an_analyzer_replaces_its_own_files_alone(tmp_path: Path, name: str, row: str) -> None:
    (tmp_path / "earlier").mkdir()
    (tmp_path / "job").mkdir()
    with closing(Journal(tmp_path / "earlier")) as journal:
        journal.write(hang()[-1], [not_entered()])
    put(row, tmp_path / "job" / name, tmp_path / "earlier" / name)
    before = snapshot(tmp_path / "job")
    if row not in ("nothing", "its own file"):
        with pytest.raises(OSError, match=name):
            Journal(tmp_path / "job")
        assert snapshot(tmp_path / "job") == before
        return
    with closing(Journal(tmp_path / "job")) as journal:
        journal.write(hang()[-1], [not_entered()])
    kept = [str(facts[3]) for facts in snapshot(tmp_path / "job").values()]
    # Findings are appended to, and a recording is moved to a name with .1.
    assert row == "nothing" or name == "state.json" or any(str(before[name][3]) in content for content in kept)


def test_two_analyzers_do_not_write_to_one_directory(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(BlockingIOError, match="another analyzer writes here"):
        Journal(tmp_path)
    assert snapshot(tmp_path) == before
    first.close()
    Journal(tmp_path).close()


def test_a_sweep_removes_what_jobs_left_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "root_directory", lambda: tmp_path)
    monkeypatch.setattr(directory, "MAX_AGE_SECONDS", 60.0)
    tmp_path.chmod(0o700)
    for name in ("empty", "notes"):
        (tmp_path / name).mkdir(0o700)
        for left in ("control", "rank-0-0.sock", "rank-0-0.script", "rank-0-0.stack"):
            (tmp_path / name / left).touch()
    (tmp_path / "notes" / "rank-0-0.txt").write_text("mine")
    (tmp_path / "notes" / "results").mkdir()
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, time.time() - 3600))
    directory.sweep(tmp_path / "mine")
    assert not (tmp_path / "empty").exists()
    assert sorted(path.name for path in (tmp_path / "notes").iterdir()) == ["rank-0-0.txt", "results"]
