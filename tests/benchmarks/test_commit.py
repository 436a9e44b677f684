"""Results are kept of committed files alone: those that differ from their commit could not be measured again."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from benchmarks import environment, results_page

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a source and results, in the place of this one."""
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "old.json").write_text("1")
    (tmp_path / "source.py").write_text("1")
    author = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for command in (("init", "-q"), ("add", "."), (*author, "commit", "-q", "-m", "x")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    for name, value in (("ROOT", tmp_path), ("RESULTS", results), ("KEPT", (results,))):
        monkeypatch.setattr(environment, name, value)
    return tmp_path


def keep() -> None:
    results_page.keep_rows("new", "make x", [{"a": 1}], [("a", "a", "d")])


def test_files_that_differ_from_the_commit_give_no_results(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "source.py").write_text("2")
    with pytest.raises(SystemExit, match=r"differ from commit \w+ \(git diff HEAD\). Commit them first"):
        keep()
    assert not (environment.RESULTS / "new.json").exists()
    assert "| 1 |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="differ from commit"):
        environment.describe("make x", environment.RESULTS / "other-machine")
    for folder in (None, tree / "build", environment.folder(quick=True)):
        assert environment.describe("make x", folder)["commit"].endswith("-dirty")


def test_results_that_were_written_before_do_not_count(tree: Path) -> None:
    (environment.RESULTS / "old.json").write_text("2")
    keep()
    assert '"commit": "' in (environment.RESULTS / "new.json").read_text()
    assert "-dirty" not in (environment.RESULTS / "new.json").read_text()


def test_results_of_another_machine_are_refused_too(tree: Path) -> None:
    with pytest.raises(SystemExit, match="differ from commit abc "):
        environment.check_commit({"commit": "abc-dirty"}, environment.RESULTS)
    environment.check_commit({"commit": "abc"}, environment.RESULTS)
