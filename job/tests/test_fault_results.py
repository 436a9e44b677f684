"""Runs of faults are kept from one run of the program to the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environment
from job.tests.faults import levels
from job.tests.faults.cases import BY_NAME
from job.tests.faults.results import Results
from tensorwire_job.model import Confidence, Finding

SLEEP, CHECKPOINT = BY_NAME["h1-sleep"], BY_NAME["checkpoint-one"]


def facts(commit: str = "abc") -> dict[str, Any]:
    return environment.describe("test") | {"commit": commit, "load": 0.0, "thresholds": "hang_seconds 3"}


def test_runs_are_added_to_those_of_another_commit(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    first = Results(path, facts("abc"))
    first.skipped["clock-step"] = "no C compiler"
    first.add(SLEEP, 0, seconds=3.1, wrong="", levels={"high": True})
    first.add(SLEEP, 1, seconds=None, wrong="nothing found", levels={})
    first.add_failed(SLEEP, 2, "no network")
    second = Results(path, facts("def"))
    assert second.due(SLEEP, 5) == [2, 3, 0]
    assert second.due(CHECKPOINT, 2) == [0, 0]
    second.add(SLEEP, 2, seconds=3.3, wrong="", levels={"high": True})
    assert [(row["rank"], row["commit"]) for row in json.loads(path.read_text())["runs"]] == [
        (0, "abc"),
        (1, "abc"),
        (2, "def"),
    ]
    page = path.with_suffix(".md").read_text()
    assert "3 runs, at these commits: abc (2), def (1)" in page
    assert "| TW-H1 | 2/3 | 20.8-93.9 % | |" in page  # Wilson's interval by hand
    assert "- h1-sleep, fault at rank 1: nothing found" in page
    assert "- h1-sleep, fault at rank 2: no network" in page
    assert "- clock-step: no C compiler" in page
    assert "| high | not measured | 2 of 2 |" in page
    assert "| low | not measured | not measured |" in page
    assert Results(path, facts(), fresh=True).rows == []


def found(confidence: Confidence, rank: int, level: str = "finding") -> Finding:
    return Finding("TW-H1", level, 3.0, [rank], [], "default_pg", "", [], confidence)  # type: ignore[arg-type]


def test_a_confidence_is_right_where_all_of_its_verdicts_are() -> None:
    high, low = Confidence.HIGH, Confidence.LOW
    right = levels.levels_of(SLEEP, 2, [found(high, 2), found(low, 2), found(low, 2)])
    assert right == {"high": True, "low": True}
    wrong = levels.levels_of(SLEEP, 2, [found(high, 2), found(low, 2), found(low, 1), found(low, 2)])
    assert wrong == {"high": True, "low": False}
    assert levels.levels_of(CHECKPOINT, 0, [found(high, 0, "notice"), found(low, 0)]) == {"low": False}
    assert levels.count([right, wrong, {}]) == {"high": [2, 2], "medium": [0, 0], "low": [1, 2]}


def test_what_is_no_result_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text('{"runs": []}')
    with pytest.raises(ValueError, match="--fresh"):
        Results(path, facts())
    assert path.read_text() == '{"runs": []}'
