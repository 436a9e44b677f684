"""The last calls of a rank, which it reads once it stands still."""

from __future__ import annotations

from pathlib import Path

import pytest

from job.tests.support.probe_jobs import PROBE, SCRIPTS, run_job
from tensorwire_job.model import MAX_CALLS, Call, Operation
from tensorwire_job.page import call_file

CALLS = (
    Call("a1", Operation(7, "all_to_all", "float32", 3, -1, 5), 9, (2, 1, 2, 1)),
    Call("b2", Operation(1, "send", "float32", 5, 1, 6)),
)


def test_calls_of_all_kinds_in_their_order_with_lines(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    first, second = run_job([*PROBE, str(SCRIPTS / "calls.py")], tmp_path / "pages")
    common = "all_reduce 1 4 -1 True", "broadcast 3 2 -1 True"
    assert first.splitlines() == [
        common[0], "all_to_all 2 3 -1 True 2 1 2 1", "send 1 5 1 True", common[1], "all_reduce 4 4 -1 True",
    ]  # fmt: skip
    assert second.splitlines() == [common[0], "all_to_all 2 3 -1 True 1 2 1 2", "recv 1 5 0 True", common[1]]


def test_an_exchange_that_the_recorder_does_not_have_yet_shifts_no_other(tmp_path: Path) -> None:
    """Its thread may lose the processor, or wait for the interpreter's lock to have its stack noted."""
    pytest.importorskip("torch")
    both, held = run_job([*PROBE, str(SCRIPTS / "held_exchange.py")], tmp_path / "pages")
    assert both.splitlines() == ["all_to_all 1 2 1 2 1", "all_to_all 2 1 2 1 2"]
    assert held.splitlines() == ["all_to_all 1 1 2 1 2"]


@pytest.mark.parametrize(
    ("which", "first", "second"),
    [
        (
            "reduce",
            ["reduce 2 4 0", "reduce 1 4 -1", "reduce 2 4 0"],
            ["reduce 2 4 1", "reduce 1 4 -1", "reduce 2 4 1"],
        ),
        (
            "reduce_scatter",
            ["reduce_scatter_tensor 3 4 -1", "reduce_scatter 1 2 -1", "reduce_scatter 2 2 -1",
             "reduce_scatter_tensor 3 4 -1"],
            ["all_reduce 2 2 -1", "reduce_scatter 1 2 -1", "reduce_scatter 2 2 -1"],
        ),
    ],
)  # fmt: skip
def test_torchs_function_tells_what_the_recorder_lacks(
    which: str, first: list[str], second: list[str], tmp_path: Path
) -> None:
    """The root of a reduce, and that gloo makes a reduce_scatter of all_reduces. Nobody waits in rank 1 in the end."""
    pytest.importorskip("torch")
    printed = run_job([*PROBE, str(SCRIPTS / "true_calls.py"), which], tmp_path / "pages")
    assert [each.splitlines() for each in printed] == [first, second]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    page = tmp_path / "rank-0-0.page"
    assert call_file.read(page) is None
    call_file.write(page, CALLS)
    read = call_file.read(page)
    assert read is not None
    assert read[1] == CALLS
    call_file.write(page, CALLS[:1] * (MAX_CALLS + 1))
    read = call_file.read(page)
    assert read is not None
    assert len(read[1]) == MAX_CALLS
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0-0.calls"]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"ns": 0, "calls": []}', '{"ns": 1, "calls": [[]]}', '{"ns": 1.5, "calls": []}',
        '{"ns": 1, "calls": [["a", -1, "send", "", 1, 1, 1, 1, []]]}',
        '{"ns": 1, "calls": [["a", 1, "send", "", 1, 1, 1, 1, [true]]]}',
        '{"ns": 1, "calls": [["a", 1, "send", "", 1, 1, 1, 4294967296, []]]}',
        '{"ns": 1, "calls": [' + ",".join(['["a", 1, "send", "", 1, 1, 1, 1, []]'] * (MAX_CALLS + 1)) + "]}",
        "[" * 100_000,
    ],
)  # fmt: skip
def test_what_no_rank_writes_is_none(tmp_path: Path, text: str) -> None:
    page = tmp_path / "rank-0-0.page"
    call_file.call_path(page).write_text(text)
    assert call_file.read(page) is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    page = tmp_path / "rank-0-0.page"
    call_file.write(page, CALLS)
    call_file.call_path(page).rename(tmp_path / "other")
    call_file.call_path(page).symlink_to(tmp_path / "other")
    assert call_file.read(page) is None
