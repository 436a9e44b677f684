"""What the commands replace, and what they leave alone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
        for left in ("control", "rank-0-0.sock", "rank-0-0.stack"):
            (tmp_path / name / left).touch()
    (tmp_path / "notes" / "rank-0-0.txt").write_text("mine")
    (tmp_path / "notes" / "results").mkdir()
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, time.time() - 3600))
    directory.sweep(tmp_path / "mine")
    assert not (tmp_path / "empty").exists()
    assert sorted(path.name for path in (tmp_path / "notes").iterdir()) == ["rank-0-0.txt", "results"]
