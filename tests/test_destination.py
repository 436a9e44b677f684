"""What may be replaced: the table of docs/cli.md, each of its cells tried as the user that runs this and as another."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.destination_cells import (
    APPLIED,
    APPLIED_DIRECTORY,
    BASE,
    COLUMNS,
    FORCE,
    NEEDS_ROOT,
    NONE,
    OTHER_USER,
    TABLE,
    WRITERS,
    YES,
)

Tried = dict[tuple[int, str, str, bool], dict[str, Any]]
USERS = ["me", "another"]
CELLS = [
    (row, name)
    for row, verdicts in TABLE.items()
    for name, writer in WRITERS.items()
    if verdicts[COLUMNS.index(writer.column)] != NONE
]
# The reasons that a directory is refused for, where nothing else speaks against replacing it.
REASONS = {
    "a compressed directory that holds another file, at any depth": "holds a file that the result does not replace",
    "a mount point": "is a mount point",
    "a directory that holds a mount point": "mount point",
    "the working directory": "working directory",
    "a directory that holds the working directory": "working directory",
    "your home directory": "home directory",
    "SRC, by whatever name": "are the same",
    "a directory that holds SRC": "lie in each other",
    "a directory in SRC": "lie in each other",
}


@pytest.fixture(scope="module")
def tried() -> Any:
    """All cells of the table, tried in a process of their own."""
    command = [sys.executable, "-m", "tests.support.destination_cells"]
    unshare = shutil.which("unshare")
    if os.geteuid() == 0 and unshare is not None:  # what is mounted goes with the process
        command = [unshare, "--mount", *command]
    with tempfile.TemporaryDirectory() as name:  # tmp_path is its owner's alone
        Path(name).chmod(0o755)
        done = subprocess.run([*command, name], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {(one["user"], one["row"], one["writer"], one["force"]): one for one in lines}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(("row", "writer"), CELLS)
def test_what_may_be_replaced(tried: Tried, row: str, writer: str, user: str) -> None:
    if os.geteuid() != 0 and (row in NEEDS_ROOT or user == "another"):
        pytest.skip("needs root")
    column = WRITERS[writer].column
    verdict = TABLE[row][COLUMNS.index(column)]
    for force in (False, True):
        one = tried[OTHER_USER if user == "another" else os.geteuid(), row, writer, force]
        own = one["destination"] + "/"
        mounted = "outside/" if row == "a mount point" and verdict == BASE else own  # its files, by another name
        lost = [path for path in one["lost"] if not path.startswith((own, mounted))]
        assert not lost, "everything else stands as it stood"
        if verdict in (YES, BASE) or (verdict == FORCE and force):
            assert one["error"] == ""
            assert one["replaced"] or (verdict == BASE and one["lost"])
            assert all(path == own[:-1] or path.startswith(own) for path in one["new"]), "nothing is left behind"
            continue
        kinds = "FileExistsError|ValueError|FileNotFoundError|NotADirectoryError|BaseMismatchError"
        assert re.match(kinds + ("|LimitExceededError|FormatError" if column == APPLIED else ""), one["error"])
        assert (one["lost"], one["new"], one["replaced"]) == ([], [], False)
        if verdict == FORCE:
            assert "pass force=True to replace it" in one["error"]
        else:
            assert "force" not in one["error"], "it would not help"
            assert re.search("name|move|remove", one["error"]), "what to do instead"
        if WRITERS[writer].is_directory and column != APPLIED_DIRECTORY:
            assert REASONS.get(row, "") in one["error"]


def test_the_table_of_the_manual_has_these_cells(repository: Path) -> None:
    text = (repository / "docs" / "cli.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.partition("## What may be replaced")[2].partition("\n## ")[0].splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["at DST stands", *COLUMNS]
    assert {row[0]: tuple(row[1:]) for row in rows[2:]} == TABLE
