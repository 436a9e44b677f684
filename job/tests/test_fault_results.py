"""Runs of faults are kept from one run of the program to the next, and one that fails ends nothing."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import environment
from job.tests.faults import __main__ as program
from job.tests.faults import levels
from job.tests.faults.cases import BY_NAME, CASES
from job.tests.faults.results import JSON, Results
from job.tests.faults.run import Outcome
from tensorwire_job.model import Confidence, Finding

if TYPE_CHECKING:
    from pathlib import Path

SLEEP, KILL, CHECKPOINT = BY_NAME["h1-sleep"], BY_NAME["lost-sigkill"], BY_NAME["checkpoint-one"]


def facts(commit: str = "abc") -> dict[str, Any]:
    return environment.describe("test") | {"commit": commit, "load": 0.0, "thresholds": "hang_seconds 3"}


class Stage:
    """In place of jobs: every third run fails."""

    numbers = itertools.count(1)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, case: Any, rank: int) -> Outcome:
        if next(Stage.numbers) % 3 == 0:
            raise BrokenPipeError("no more\nranks")
        return Outcome(rank, "", 3.0, {"high": True})

    def reset(self) -> None:
        pass


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


def test_the_table_of_confidence_is_that_of_the_recordings_now() -> None:
    assert json.loads(JSON.read_text())["recorded"] == levels.of_recordings()


def test_what_is_no_result_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text('{"runs": []}')
    with pytest.raises(ValueError, match="--fresh"):
        Results(path, facts())
    assert path.read_text() == '{"runs": []}'


def test_turns_are_all_runs_that_are_due(tmp_path: Path) -> None:
    results = Results(tmp_path / "faults.json", facts())
    results.add(KILL, 2, seconds=2.0, wrong="", levels={"high": True})
    turns = program.turns(CASES, results, 9)
    runs = Counter((case.name, rank) for turn in turns for case, rank in turn)
    assert runs == Counter((case.name, case.rank(run)) for case in CASES for run in range(9)) - Counter(
        [("lost-sigkill", 2)]
    )
    for turn in turns:
        shared = {case.name for case, _ in turn}
        assert len(shared) == 1 or all(BY_NAME[name].mends for name in shared)
        assert len({BY_NAME[name].job for name in shared}) == 1


def test_a_run_that_fails_is_listed_and_due_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "Stage", Stage)
    path = tmp_path / "faults.json"
    for _ in range(3):
        results = Results(path, facts())
        program.run(program.turns([SLEEP, KILL], results, 4), results, 2)
    assert Counter((row["case"], row["rank"]) for row in results.rows) == Counter(
        (case.name, rank) for case in (SLEEP, KILL) for rank in range(4)
    )
    assert {row["reason"] for row in results.failed} == {"BrokenPipeError: no more ranks"}
    assert len(results.failed) == 3  # of 8 runs two, and one of the two that were due again
