"""What may be replaced: the table of docs/cli.md, each of its cells tried by examples."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.destination_cells import (
    BASE,
    COLUMNS,
    DIRECTORIES,
    EXAMPLES,
    FORCE,
    IN_PLACE,
    MODEL,
    NO,
    OURS,
    TABLE,
    WRITERS,
    YES,
)

pytestmark = pytest.mark.xdist_group("destinations")  # all tries are made once
KINDS = "FileExistsError|ValueError|FileNotFoundError|NotADirectoryError|BaseMismatchError"
IN_PLACE_KINDS = f"{KINDS}|LimitExceededError|FormatError"


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All tries, in a process of their own."""
    command = [sys.executable, "-m", "tests.support.destination_cells", str(tmp_path_factory.mktemp("places"))]
    unshare = shutil.which("unshare")
    if os.geteuid() == 0 and unshare is not None:  # what is mounted goes with the process
        command = [unshare, "--mount", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", TABLE)
def test_what_may_be_replaced(tried: list[dict[str, Any]], row: str, column: str) -> None:
    found = [one for one in tried if one["row"] == row and WRITERS[one["writer"]].column == column]
    assert found
    for one in found:
        check(one, TABLE[row][COLUMNS.index(column)])


def check(one: dict[str, Any], verdict: str) -> None:
    """One try: what it says, and what became of all that stood there."""
    writer, example, row = WRITERS[one["writer"]], EXAMPLES[one["example"]], one["row"]
    if (row in DIRECTORIES and not writer.is_directory) or (row in (OURS, MODEL) and writer.is_directory):
        verdict = NO
    if verdict == BASE and not (example.is_base and writer.is_directory == (row != MODEL)):
        verdict = NO
    if one["writer"] == "save_file" and verdict == FORCE:
        verdict = YES
    own = one["destination"] + "/"
    mounted = "outside/" if one["example"] == "a mount point" and verdict == BASE else own  # its files, by another name
    lost = [path for path in one["lost"] if not path.startswith((own, mounted))]
    assert not lost, f"{one}: everything else stands as it stood"
    if verdict in (YES, BASE) or (verdict == FORCE and one["force"]):
        assert one["error"] == "", one
        assert one["replaced"] or (verdict == BASE and one["lost"]), one
        assert all(path == own[:-1] or path.startswith(own) for path in one["new"]), f"{one}: nothing is left behind"
        return
    assert re.match(IN_PLACE_KINDS if writer.column == IN_PLACE else KINDS, one["error"]), one
    assert (one["lost"], one["new"], one["replaced"]) == ([], [], False), one
    if verdict == FORCE:
        assert "pass force=True to replace it" in one["error"], one
        return
    assert "force" not in one["error"], f"{one}: it would not help"
    assert re.search("name|move|remove", one["error"]), f"{one}: what to do instead"
    if writer.is_directory and writer.column != IN_PLACE:
        assert example.reason in one["error"], one


def test_the_table_of_the_manual_has_these_cells(repository: Path) -> None:
    text = (repository / "docs" / "cli.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.partition("## What may be replaced")[2].partition("\n## ")[0].splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["at DST stands", *COLUMNS]
    assert {row[0]: tuple(row[1:]) for row in rows[2:]} == TABLE
