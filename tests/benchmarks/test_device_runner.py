"""The script that measures a GPU: whatever a section does, what was known stays, and the next one begins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device import runner
from tests.support.fake_sections import FakeBench, sections

ROOT = Path(__file__).resolve().parents[2]


def measured(folder: Path, *names: str, **options: Any) -> list[dict[str, Any]]:
    path = folder / runner.FILE
    runner.run(lambda: (sections(*names), FakeBench()), path, **{"seconds": 900.0, **options})
    return runner.lines(path)


def rows(lines: list[dict[str, Any]], section: str) -> list[str]:
    return [line["row"]["what"] for line in lines if line.get("section") == section and "row" in line]


def errors(lines: list[dict[str, Any]], section: str) -> str:
    return " ".join(line["error"] for line in lines if line.get("section") == section and "error" in line)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("raises", "words that say why"),
        ("breaks", "the device is unusable behind it: an illegal memory access"),
        ("dies", "exit code -9"),
        pytest.param("hangs", "it hung", marks=pytest.mark.slow),
    ],
)
def test_the_next_section_begins(bad: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "GRACE_SECONDS", 0.3)
    lines = measured(tmp_path, "works-first", bad, "works-last")
    assert "versions" in lines[0]["environment"]
    assert rows(lines, "works-first") == rows(lines, "works-last") == ["one", "two"]
    assert rows(lines, bad) == ["kept"]
    assert said in errors(lines, bad)
    assert errors(lines, "works-first") == errors(lines, "works-last") == ""


def test_a_section_that_runs_over_its_time_is_cut_between_rows(tmp_path: Path) -> None:
    lines = measured(tmp_path, "overruns", "works")
    assert rows(lines, "overruns")[0] == "in time"
    assert "never" not in rows(lines, "overruns")
    assert "cut after " in errors(lines, "overruns")
    assert rows(lines, "works") == ["one", "two"]


def test_what_the_whole_time_has_no_room_for_is_named(tmp_path: Path) -> None:
    lines = measured(tmp_path, "works", "works-more", seconds=1.0)
    assert rows(lines, "works") == []
    assert "not begun" in errors(lines, "works")
    assert "not begun" in errors(lines, "works-more")


def test_only_the_sections_that_are_asked_for_run(tmp_path: Path) -> None:
    lines = measured(tmp_path, "raises", "works", names=["works"])
    assert {line["section"] for line in lines if "section" in line} == {"works"}


def test_what_cannot_be_loaded_is_said_and_tried_once(tmp_path: Path) -> None:
    def load() -> Any:
        raise ImportError("no module of that name")

    runner.run(load, tmp_path / runner.FILE, 60.0)
    assert "exit code 1" in errors(runner.lines(tmp_path / runner.FILE), "loading")


def test_lines_are_whole_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / runner.FILE
    code = (
        "import pathlib, sys; from benchmarks.device import runner; from tests.support.fake_sections import *; "
        "runner.run(lambda: (sections('goes_on'), FakeBench()), pathlib.Path(sys.argv[1]), 900)"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], cwd=ROOT, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        for _ in range(3):
            job.stdout.readline()
        child = int(Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text())
        os.kill(child, signal.SIGKILL)
        job.kill()
    assert len(rows(runner.lines(path), "goes_on")) >= 3
    with path.open("a") as file:
        file.write('{"section": "overruns", "row": {"wh')
    assert len(rows(runner.lines(path), "goes_on")) >= 3
