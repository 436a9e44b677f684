"""verify, decompress and transcode of a directory in which files beside the tensors were edited or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tensorwire.checkpoint.operations.converter import Converter
from tests.support.acting import raising

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import Run


@pytest.fixture
def changed(compressed: Path) -> Path:
    (compressed / "notes.txt").write_text("edited")
    (compressed / "config.json").unlink()
    return compressed


def notes(out: str) -> list[str]:
    return sorted(line.split()[1] for line in out.splitlines() if line.startswith("note: "))


def test_each_changed_file_is_a_line_and_the_exit_code_says_finding(changed: Path, tmp_path: Path, run: Run) -> None:
    for command in (
        ("verify", changed),
        ("decompress", changed, tmp_path / "back"),
        ("transcode", changed, tmp_path / "other", "--profile", "enec"),
    ):
        ran = run(*command)
        assert (ran.code, ran.err) == (3, "")
        assert notes(ran.out) == ["config.json", "notes.txt"]
        assert "damaged:" not in ran.out
    assert (tmp_path / "back" / "notes.txt").read_text() == "edited"
    assert (tmp_path / "back" / "config.json").read_text() == '{"model_type": "bert"}'


def test_changed_files_in_json(changed: Path, tmp_path: Path, run: Run) -> None:
    for command in (("verify", changed), ("decompress", changed, tmp_path / "back")):
        ran = run(*command, "--json")
        assert ran.code == 3
        found = {file["path"]: (file["status"], file["outcome"]) for file in ran.json["changed"]}
        assert found == {"notes.txt": ("edited", "kept"), "config.json": ("missing", "restored")}
        assert ran.json["exact"] is False


def test_strict_makes_errors_of_them(changed: Path, tmp_path: Path, run: Run) -> None:
    ran = run("verify", changed, "--strict")
    assert ran.code == 1
    assert "damaged: 2 problems" in ran.out
    for command in ("decompress", "transcode"):
        options = ["--profile", "enec"] if command == "transcode" else []
        ran = run(command, changed, tmp_path / "x", "--strict", *options)
        assert (ran.code, ran.out) == (1, "")
        assert not (tmp_path / "x").exists()


def test_strict_looks_before_the_work(changed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Hours of decoding would be in vain."""
    monkeypatch.setattr(Converter, "_transfer", raising(AssertionError("a file of tensors was decoded")))
    assert run("decompress", changed, tmp_path / "x", "--strict").code == 1
    assert list(tmp_path.glob("x*")) == []


@pytest.mark.parametrize(("name", "kept"), [("notes.txt", "it is left out"), ("config.json", "it is restored")])
def test_strict_says_what_is_missing_and_what_happens_without_it(
    compressed: Path, tmp_path: Path, run: Run, name: str, kept: str
) -> None:
    (compressed / name).unlink()
    for ran in (run("verify", compressed, "--strict"), run("decompress", compressed, tmp_path / "x", "--strict")):
        assert ran.code == 1
        assert f"'{compressed / name}': this file, which tensorwire.json lists, is missing" in ran.err
        assert f"without strict (--strict) {kept}" in ran.err
        assert "Errno" not in ran.err
