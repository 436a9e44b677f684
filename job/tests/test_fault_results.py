"""Runs of faults are kept from one run of the program to the next, and shown; one that fails ends nothing."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environment
from job.tests.faults import matrix_page, programs, stacks_page, together, variant_page
from job.tests.faults.cases import BY_NAME, CASES, GROUPS, Case
from job.tests.faults.results import FIRST, MENDED, Results
from job.tests.faults.turns import take, turns
from job.tests.faults.verdicts import Judgement, judge
from job.tests.faults.watch import Poll
from tensorwire_job.model import Confidence, Finding

SLEEP, KILL, CHECKPOINT = BY_NAME["h1-sleep"], BY_NAME["lost-sigkill"], BY_NAME["checkpoint-one"]
HANG, QUIET = BY_NAME["store-key"], BY_NAME["gather-of-int32"]
RIGHT = Judgement(seconds=3.0, right=True, levels={"high": [1, 1]})
WRONG = Judgement(wrong=["nothing found"])


def facts(commit: str = "abc") -> dict[str, Any]:
    return environment.describe("test", None) | {"commit": commit, "load": 0.0, "thresholds": "hang_seconds 3"}


def matrix(path: Path, commit: str = "abc", **options: Any) -> Results:
    return Results(path, facts(commit), matrix_page.page, **options)


def unseen(path: Path, commit: str = "abc", **options: Any) -> Results:
    return Results(path, facts(commit), variant_page.page, **options)


def found(confidence: Confidence, rank: int, level: str = "finding", code: str = "TW-H1") -> Finding:
    return Finding(code, level, 3.0, [rank], [], "default_pg", "", [], confidence)  # type: ignore[arg-type]


def judged(*findings: Finding, case: Case = HANG, rank: int = 2) -> Judgement:
    return judge(case, rank, [Poll(0.0, list(findings))], 0.0)


class Stage:
    """In place of jobs: every third run fails."""

    numbers = itertools.count(1)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, case: Any, rank: int) -> Judgement:
        if next(Stage.numbers) % 3 == 0:
            raise BrokenPipeError("no more\nranks")
        return RIGHT

    def reset(self) -> None:
        pass


def test_runs_are_added_to_those_of_another_commit(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    first = matrix(path, "abc")
    first.skipped["clock-step"] = "no C compiler"
    first.add(SLEEP, 0, RIGHT)
    first.add(SLEEP, 1, WRONG)
    first.add_failed(SLEEP, 2, "no network")
    second = matrix(path, "def")
    assert second.due(SLEEP, 5) == [2, 3, 0]
    assert second.due(CHECKPOINT, 2) == [0, 0]
    second.add(SLEEP, 2, RIGHT)
    rows = json.loads(path.read_text())["runs"]
    assert [(row["rank"], row["commit"]) for row in rows] == [(0, "abc"), (1, "abc"), (2, "def")]
    page = path.with_suffix(".md").read_text()
    assert "3 runs, at these commits: abc (2), def (1)" in page
    assert "| TW-H1 | 2/3 | 20.8-93.9 % |" in page  # Wilson's interval by hand
    assert "- h1-sleep, fault at rank 1: nothing found" in page
    assert "- h1-sleep, fault at rank 2: no network" in page
    assert "- clock-step: no C compiler" in page
    assert "| high | 2 of 2 |" in page
    assert "| low | none |" in page
    assert matrix(path, forget=["h1-sleep"]).rows == []


def test_a_confidence_is_right_where_all_of_its_verdicts_are() -> None:
    high, low = Confidence.HIGH, Confidence.LOW
    right = judged(found(high, 2), found(low, 2), found(low, 2), case=SLEEP)
    wrong = judged(found(high, 2), found(low, 2), found(low, 1), found(low, 2), case=SLEEP)
    none = judged(found(high, 0, "notice"), found(low, 0), case=CHECKPOINT, rank=0)
    assert none.levels == {"low": [0, 1]}
    rows = [{"levels": each.levels} for each in (right, wrong, Judgement())]
    assert matrix_page.count(rows) == {"high": [2, 2], "medium": [0, 0], "low": [1, 2]}


@pytest.mark.parametrize("page", [matrix_page, variant_page, stacks_page], ids=["matrix", "variants", "stacks"])
def test_the_page_is_that_of_the_results(page: Any) -> None:
    known = json.loads(page.JSON.read_text())
    assert page.JSON.with_suffix(".md").read_text() == Results(page.JSON, known["environment"], page.page).page()


def test_what_is_no_result_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text('{"runs": []}')
    with pytest.raises(ValueError, match="holds no results"):
        matrix(path)
    assert path.read_text() == '{"runs": []}'


def test_turns_are_all_runs_that_are_due(tmp_path: Path) -> None:
    results = matrix(tmp_path / "faults.json")
    results.add(KILL, 2, RIGHT)
    due = turns(CASES, results, 9)
    runs = Counter((case.name, rank) for turn in due for case, rank in turn)
    wanted = Counter((case.name, case.ranks[run % len(case.ranks)]) for case in CASES for run in range(9))
    assert runs == wanted - Counter([("lost-sigkill", 2)])
    for turn in due:
        shared = {case.name for case, _ in turn}
        assert len(shared) == 1 or all(BY_NAME[name].mends for name in shared)
        assert len({BY_NAME[name].job for name in shared}) == 1


@pytest.mark.parametrize(
    ("make", "cases", "num_runs"), [(matrix, [SLEEP, KILL], 4), (unseen, [HANG, BY_NAME["hung-up"]], None)]
)
def test_a_run_that_fails_is_listed_and_due_again(make: Any, cases: list[Case], num_runs: int, tmp_path: Path) -> None:
    Stage.numbers = itertools.count(1)
    path = tmp_path / "faults.json"
    for _ in range(3):
        results = make(path)
        take(turns(cases, results, num_runs), 2, Stage, results)
    wanted = Counter((case.name, rank) for case in cases for rank in range(4))
    assert Counter((row["case"], row["rank"]) for row in results.rows) == wanted
    assert {row["reason"] for row in results.failed} == {"BrokenPipeError: no more ranks"}
    assert len(results.failed) == 3  # of 8 runs two, and one of the two that were due again
    assert "BrokenPipeError: no more ranks" in results.page()


def test_first_results_stay_beside_those_after_mending(tmp_path: Path) -> None:
    path = tmp_path / "unseen.json"
    first = unseen(path, "abc", stage=FIRST)
    assert first.due(HANG) == [0, 1, 2, 3]
    assert first.due(replace(QUIET, ranks=(1, 3)), 3) == [1, 3, 1]
    first.add(HANG, 2, judged(found(Confidence.HIGH, 0, code="TW-H3")))
    mended = unseen(path, "def")
    assert mended.due(HANG) == [0, 1, 2, 3]
    mended.add(HANG, 2, judged(found(Confidence.HIGH, 2)))
    page = path.with_suffix(".md").read_text()
    assert "- Commits, unseen, first: abc (1)" in page
    assert "- Commits, unseen, mended: def (1)" in page
    assert "| TW-H3 0 (high) | 0 of 1 (rank 0, class 0); after 0.0 s | TW-H1 R (high) | 1 of 1; after 0.0 s |" in page
    # Wilson's intervals by hand
    assert "| rank right | - | - | 0/1 (0.0-79.3 %) | 1/1 (20.7-100.0 %) | - | - | - | - | - | - | 95 % |" in page
    again = unseen(path, "ghi", forget=["store-key"])
    assert [(row["rank"], row["stage"], row["commit"]) for row in again.rows] == [(2, FIRST, "abc")]
    with pytest.raises(ValueError, match="made once"):
        unseen(path, stage=FIRST, forget=["store-key"])


def test_rows_have_one_order(tmp_path: Path) -> None:
    path = tmp_path / "unseen.json"
    for stage, rank in ((MENDED, 3), (FIRST, 2), (MENDED, 1)):
        unseen(path, stage=stage).add(HANG, rank, judged())
    rows = json.loads(path.read_text())["runs"]
    assert [(row["stage"], row["rank"]) for row in rows] == [(FIRST, 2), (MENDED, 1), (MENDED, 3)]


def test_runs_of_several_files_count_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    high = Confidence.HIGH
    looks = found(high, 2), found(high, 1), replace(found(high, 0, code="TW-H2"), suspects=[], sides=[[0, 1], [2]])
    files = [str(tmp_path / f"{number}.json") for number in range(len(looks))]
    for file, look in zip(files, looks, strict=True):
        for stage, dead in ((FIRST, None), (MENDED, [found(high, 2)])):
            unseen(Path(file), stage=stage).add(HANG, 2, judge(HANG, 2, [Poll(0.0, [look])], 0.0, dead))
    monkeypatch.setattr("sys.argv", ["together", *files])
    together.main()
    told = capsys.readouterr().out.splitlines()
    # Wilson's intervals by hand
    third = "1 of 3, 33.3 % (6.1-79.2 %)"
    assert f"| sets 1 to 3, mended: rank right | {third} | 90 % |" in told
    assert f"| sets 1 to 3, mended: sides or several ranks, the right one among them | {third} |  |" in told
    assert f"| sets 1 to 3, mended: others named, and not the right rank | {third} | at most 3 % |" in told
    assert f"| all, mended: the same once the job is dead | {third} | all |" in told
    assert "| known before: rank right | not measured | 97 % |" in told


def test_each_case_has_its_function_and_a_name_of_its_own() -> None:
    every = [case for cases in GROUPS.values() for case in cases]
    assert len(BY_NAME) == len(every)
    assert all(bool(case.program) == (case not in CASES) for case in every)
    folder = Path(programs.__file__).parent
    for case in every:
        source = folder / f"{case.program}.py" if case.program else folder.parent / "injections.py"
        for name in case.function.split()[: 2 if "slow_down" in case.function else 1]:
            assert re.search(rf"^def {name}\b", source.read_text(), re.MULTILINE), case.name
    assert {path.stem for path in folder.glob("*.py")} - {case.program for case in every} == {
        "__init__",
        "__main__",
        "common",
        "compressed_traffic",  # job/tests/test_live_traffic.py runs it
        "small_training",
    }
