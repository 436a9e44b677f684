"""The Python of a version is one that runs: what pyenv puts on PATH may be a program that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.system.interpreters import interpreter, main

if TYPE_CHECKING:
    from pathlib import Path


def program(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "shims" / "python9.9", "exit 127")
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("HOME", str(tmp_path))


def test_pyenv_has_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = program(tmp_path / ".pyenv" / "versions" / "9.9.1" / "bin" / "python9.9", "echo 9.9")
    assert interpreter("9.9") == path
    main("9.9")
    assert capsys.readouterr().out == path + "\n"


def test_there_is_none() -> None:
    assert interpreter("9.9") is None
    with pytest.raises(SystemExit, match=r"Python 9\.9 with its module ensurepip is needed"):
        main("9.9")
