"""Commands in place, killed at random moments, and with an error in each call by which they change files.

Afterwards every file is the old or the new one, nothing is lost, the same command finishes the work, and nothing is
left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.rewriting_cases import CASES

ROOT = Path(__file__).parent.parent.parent


def lines_of(module: str, *arguments: object, **environment: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", f"tests.support.{module}", *map(str, arguments)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def killed(tmp_path: Path, rounds: int) -> Counter[str]:
    rows = lines_of("killed_runs", tmp_path, rounds, 1)
    assert len(rows) == rounds
    for row in rows:
        assert row["odd"] == [], row
        assert row["again"] == [True, True], row
        assert row["left"] == [], row
    return Counter(row["state"] for row in rows)


def test_kills(tmp_path: Path) -> None:
    killed(tmp_path, 7)


@pytest.mark.slow
def test_300_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states = killed(tmp_path, 300)
    with capsys.disabled():
        print(f"\n300 kills in place, found as: {dict(states)}; nothing lost or left behind")
    assert min(states["old"], states["between"]) > 30


@pytest.fixture(scope="module")
def failing_calls(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that lets calls fail, compiled."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    library = tmp_path_factory.mktemp("library") / "failing_calls.so"
    source = ROOT / "tests" / "support" / "failing_calls.cpp"
    subprocess.run([compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return str(library)


def failed(library: str, tmp_path: Path, step: int) -> list[dict[str, Any]]:
    rows = lines_of("failing_runs", tmp_path, step, LD_PRELOAD=library)
    assert {row["case"] for row in rows} == set(CASES)
    for row in rows:
        assert row["odd"] == [], row
        assert row["left"] == [], row
        if row["code"] == 0:  # what was to be done is done, and nothing else is there
            assert (row["err"], row["done"]) == ("", True), row
        else:  # the error names the call's file, or the one that it was meant for
            assert row["code"] == 1, row
            assert row["err"].count("\n") == 1, row
            assert str(tmp_path) in row["err"], row
            assert "Input/output error" in row["err"], row
        code, err = row["again"]
        assert (code, err) == (0, "") or (row["done"] and "already exists" in err), row
    return rows


def test_errors(failing_calls: str, tmp_path: Path) -> None:
    failed(failing_calls, tmp_path, 61)


@pytest.mark.slow
def test_an_error_in_each_call(failing_calls: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = failed(failing_calls, tmp_path, 1)
    calls = Counter(row["failed"].split()[0] for row in rows)
    told = sum(row["code"] == 1 for row in rows)
    with capsys.disabled():
        print(f"\n{len(rows)} errors, one in a run: {dict(calls)}; {told} were told; nothing lost or left behind")
    kinds = {"close", "fsync", "fdatasync", "mkdir", "rmdir", "renameat2", "unlink", "write"}
    assert kinds <= {call.replace("pwrite64", "pwrite").replace("unlinkat", "unlink") for call in calls}
