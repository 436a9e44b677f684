"""Runs of faults are kept from one run of the program to the next, and one that fails ends nothing."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import environment
from benchmarks.diagnosis.faults import __main__ as program
from benchmarks.diagnosis.faults.cases import BY_NAME, CASES
from benchmarks.diagnosis.faults.results import Results
from benchmarks.diagnosis.faults.run import Outcome

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
        return Outcome(rank, "", 3.0)

    def reset(self) -> None:
        pass


def test_runs_are_added_to_those_of_another_commit(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    first = Results(path, facts("abc"))
    first.skipped["clock-step"] = "no C compiler"
    first.add(SLEEP, 0, seconds=3.1, wrong="")
    first.add(SLEEP, 1, seconds=None, wrong="nothing found")
    first.add_failed(SLEEP, 2, "no network")
    second = Results(path, facts("def"))
    assert second.due(SLEEP, 5) == [2, 3, 0]
    assert second.due(CHECKPOINT, 2) == [0, 0]
    second.add(SLEEP, 2, seconds=3.3, wrong="")
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
    assert Results(path, facts(), fresh=True).rows == []


def test_what_is_no_result_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text('{"runs": []}')
    with pytest.raises(ValueError, match="--fresh"):
        Results(path, facts())
    assert path.read_text() == '{"runs": []}'


def test_turns_are_all_runs_that_are_due(tmp_path: Path) -> None:
    results = Results(tmp_path / "faults.json", facts())
    results.add(KILL, 2, seconds=2.0, wrong="")
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
