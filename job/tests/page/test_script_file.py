"""The file beside a page that has the name of the rank's script."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tensorwire_job.page import script_file

if TYPE_CHECKING:
    from pathlib import Path


def test_the_name_is_read_as_it_was_written(tmp_path: Path) -> None:
    page = tmp_path / "rank-0-0.page"
    script_file.write(page, "/code/train.py")
    assert script_file.read(page) == "train.py"


def test_an_empty_pipe_in_its_place_is_no_name(tmp_path: Path) -> None:
    page = tmp_path / "rank-0-0.page"
    os.mkfifo(script_file.script_path(page))
    writer = os.open(script_file.script_path(page), os.O_RDWR)
    try:
        assert script_file.read(page) == ""
    finally:
        os.close(writer)
