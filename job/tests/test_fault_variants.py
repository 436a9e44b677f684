"""How runs of variants are judged, kept and shown."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environment
from job.tests.faults import cases, programs, together, variant_page, variants
from job.tests.faults.variant_results import FIRST, MENDED, VariantResults
from job.tests.faults.variants import Variant
from job.tests.faults.verdicts import Judgement, judge
from job.tests.faults.watch import Poll
from tensorwire_job.model import Confidence, Finding

HANG = Variant("hang", "hang", "a lock", ("TW-H1", "TW-H2"))
PAIR = Variant("pair", "pair", "a split", ("TW-H2",), tie=lambda rank: sorted((rank, (rank + 1) % 4)))
QUIET = Variant("quiet", "quiet", "other dtype", notice="int32", ranks=(1, 3))
HIGH, LOW = Confidence.HIGH, Confidence.LOW


def found(
    code: str, suspects: list[int], confidence: Confidence = HIGH, *, level: str = "finding", summary: str = ""
) -> Finding:
    return Finding(code, level, 3.0, suspects, [], "default_pg", summary, [], confidence)  # type: ignore[arg-type]


def judged(variant: Variant, *looks: list[Finding], start: float = 0.0) -> Judgement:
    """The judgement of the fault at rank 2, looked at once a second."""
    return judge(variant, 2, [Poll(float(number), findings) for number, findings in enumerate(looks)], start)


def test_a_run_is_right_if_class_and_rank_are_in_every_look_with_a_finding() -> None:
    run = judged(HANG, [], [found("TW-H1", [2])], [found("TW-H2", [2])])
    assert run.is_right
    assert run.found
    assert run.seconds == 1.0
    assert run.said == "TW-H1 R (high), then TW-H2 R (high)"
    assert run.levels == {"high": [2, 2]}


@pytest.mark.parametrize(
    ("looks", "rank", "code", "innocent"),
    [
        ([[found("TW-H1", [2])], [found("TW-H1", [1])]], False, True, 1),
        ([[found("TW-H1", [1], LOW)]], False, True, 0),
        ([[found("TW-H3", [2])]], True, False, 0),
        ([[found("TW-H1", [2, 1])]], True, True, 1),
        ([[found("TW-H1", [2]), found("TW-H3", [0])]], True, True, 1),
        ([[found("TW-UNKNOWN", [], LOW)]], False, False, 0),
    ],
)
def test_what_is_wrong_is_told_apart(looks: list[list[Finding]], rank: bool, code: bool, innocent: int) -> None:
    run = judged(HANG, *looks)
    assert (run.rank_right, run.class_right, len(run.innocent)) == (rank, code, innocent)
    assert not run.is_right
    assert run.found


def test_a_verdict_may_come_after_unknown() -> None:
    run = judged(HANG, [found("TW-UNKNOWN", [], LOW)], [found("TW-H1", [2])])
    assert run.is_right
    assert run.levels == {"low": [0, 1], "high": [1, 1]}


def test_silence_is_wrong_where_there_is_a_fault() -> None:
    run = judged(HANG, [], [found("TW-H1", [2], level="notice", summary="saves")])
    assert not run.found
    assert not run.is_right
    assert run.wrong == ["nothing found; noticed: saves"]


def test_a_finding_before_the_fault_is_false() -> None:
    run = judged(HANG, [found("TW-S1", [2])], [], [found("TW-H1", [2])], start=1.5)
    assert run.false_looks == 1
    assert run.rank_right
    assert not run.is_right


def test_a_tie_is_found_and_not_right() -> None:
    for suspects in ([2, 3], [3, 2]):
        run = judged(PAIR, [found("TW-H2", suspects, LOW)])
        assert (run.found, run.tie, run.rank_right, run.class_right) == (True, True, False, True)
    assert not judged(PAIR, [found("TW-H2", [1, 2], LOW)]).tie
    assert judged(PAIR, [found("TW-H2", [2], LOW)]).is_right


def test_where_nothing_may_be_found_a_notice_may_be_expected() -> None:
    notice = found("TW-H2", [2], level="notice", summary="rank 2 called it with int32")
    assert judged(QUIET, [], [notice]).is_right
    assert not judged(QUIET, [], []).is_right
    false = judged(QUIET, [notice], [notice, found("TW-H2", [2])])
    assert (false.is_right, false.false_looks, false.levels) == (False, 1, {"high": [0, 1]})
    assert len(false.innocent) == 1


def test_sides_that_hold_the_rank_are_counted_apart_from_others_that_are_named() -> None:
    sides = replace(found("TW-H2", [], LOW), sides=[[0, 1], [2]])
    for look in (sides, found("TW-H1", [1, 2])):
        run = judged(HANG, [look])
        assert (run.rank_right, run.holds, run.misnamed) == (False, True, False)
    other = judged(HANG, [sides], [found("TW-H1", [3])])
    assert (other.holds, other.misnamed) == (False, True)
    right = judged(HANG, [found("TW-H1", [2])])
    assert (right.holds, right.misnamed) == (False, False)


def test_the_dead_job_is_compared_with_the_last_look() -> None:
    polls = [Poll(0.0, [found("TW-H2", [2])]), Poll(1.0, [found("TW-H1", [2], LOW)])]
    assert judge(HANG, 2, polls, 0.0).same is None
    for dead, same in (([found("TW-H1", [2])], True), ([found("TW-LOST", [2])], False), ([], False)):
        assert judge(HANG, 2, polls, 0.0, dead).same == same
    told = judge(HANG, 2, [Poll(0.0, [found("TW-S1", [2])])], 0.0, [])
    assert (told.same, told.dead) == (None, "nothing")  # how slow a job was, its end does not show
    assert judge(QUIET, 1, [Poll(0.0, [])], 0.0, [found("TW-LOST", [0])]).false_looks == 1


def test_looks_that_are_close_count_once() -> None:
    polls = [Poll(number / 10, []) for number in range(21)]
    assert judge(QUIET, 1, polls, 0.0).looks == 5  # at 0, 0.5, 1, 1.5 and 2 s


def facts(commit: str = "abc") -> dict[str, Any]:
    return environment.describe("test") | {"commit": commit, "load": 0.0, "thresholds": "hang_seconds 5"}


@pytest.fixture
def known_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, list[Variant]] = {name: [] for name in variants.GROUPS}
    known |= {"known": [QUIET], "unseen": [HANG], "healthy": [PAIR]}
    monkeypatch.setattr(variant_page, "GROUPS", known)


@pytest.mark.usefixtures("known_variants")
def test_first_results_stay_beside_those_after_mending(tmp_path: Path) -> None:
    path = tmp_path / "unseen.json"
    first = VariantResults(path, facts("abc"), FIRST)
    assert first.due(HANG) == [0, 1, 2, 3]
    assert first.due(QUIET, 3) == [1, 3, 1]
    first.keep(HANG, 2, judged(HANG, [found("TW-H3", [0])]))
    mended = VariantResults(path, facts("def"))
    assert mended.due(HANG) == [0, 1, 2, 3]
    mended.keep(HANG, 2, judged(HANG, [found("TW-H1", [2])]))
    page = path.with_suffix(".md").read_text()
    assert "- Commits, unseen, first: abc (1)" in page
    assert "- Commits, unseen, mended: def (1)" in page
    assert "| TW-H3 0 (high) | 0 of 1 (rank 0, class 0); after 0.0 s | TW-H1 R (high) | 1 of 1; after 0.0 s |" in page
    # Wilson's intervals by hand
    assert "| rank right | - | - | 0/1 (0.0-79.3 %) | 1/1 (20.7-100.0 %) | - | - | - | - | - | - | 95 % |" in page
    again = VariantResults(path, facts("ghi"), forget=["hang"])
    assert [(row["rank"], row["stage"], row["commit"]) for row in again.rows] == [(2, FIRST, "abc")]
    with pytest.raises(ValueError, match="made once"):
        VariantResults(path, facts(), FIRST, forget=["hang"])


@pytest.mark.usefixtures("known_variants")
def test_runs_of_several_files_count_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = found("TW-H1", [2]), found("TW-H1", [1]), replace(found("TW-H2", []), sides=[[0, 1], [2]])
    files = [str(tmp_path / f"{number}.json") for number in range(len(looks))]
    for file, look in zip(files, looks, strict=True):
        dead = [found("TW-H1", [2])]
        for stage in (FIRST, MENDED):
            run = judge(HANG, 2, [Poll(0.0, [look])], 0.0, dead if stage == MENDED else None)
            VariantResults(Path(file), facts(), stage).keep(HANG, 2, run)
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


def test_each_variant_has_its_program_and_a_name_of_its_own() -> None:
    every = [variant for variants in variants.GROUPS.values() for variant in variants]
    names = Counter([*(variant.name for variant in every), *(case.name for case in cases.CASES)])
    assert [name for name, number in names.items() if number > 1] == []
    folder = Path(programs.__file__).parent
    for variant in every:
        program = (folder / f"{variant.program}.py").read_text()
        assert re.search(rf"^(def|class) {variant.function}\b", program, re.MULTILINE), variant.name
    assert {path.stem for path in folder.glob("*.py")} - {variant.program for variant in every} == {
        "__init__",
        "common",
        "compressed_traffic",  # job/tests/test_live_traffic.py runs it
        "small_training",
    }
