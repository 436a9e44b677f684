"""The file of a rank's last calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorwire_job.model import MAX_CALLS, Call, Operation
from tensorwire_job.page import call_file

CALLS = (
    Call("a1", Operation(7, "all_to_all", "float32", 3, -1, 5), 9, (2, 1, 2, 1)),
    Call("b2", Operation(1, "send", "float32", 5, 1, 6)),
)


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
        '{"ns": 1, "calls": [["a", 1, "send", "", 1, 1, 1, 8589934592, []]]}',
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
