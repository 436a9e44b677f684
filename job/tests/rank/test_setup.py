"""The page of a rank that has made no operation yet."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from job.tests.support.probe_jobs import PROBE, SCRIPTS, run_job

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("probe")  # one job at a time


def test_init_process_group_and_unused_groups_are_seen(tmp_path: Path) -> None:
    printed = run_job([*PROBE, str(SCRIPTS / "setup.py")], tmp_path / "pages", world_size=4)
    for rank, text in enumerate(printed):
        groups = {name: (members, enqueued) for name, members, enqueued in ast.literal_eval(text)}
        assert groups["mesh_dp"] == ([rank % 2, rank % 2 + 2], 0)
        assert groups["mesh_tp"] == ([rank // 2 * 2, rank // 2 * 2 + 1], 0)
        assert groups["default_pg"][0] == [0, 1, 2, 3]
        assert groups.keys() >= {"mesh_dp", "mesh_tp", "default_pg"}
