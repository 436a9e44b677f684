"""The ranks that a rank waits for, while nothing is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from job.tests.support.probe_jobs import PROBE, SCRIPTS, run_job

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("probe")  # one job at a time


def test_messages_of_all_kinds_are_seen_while_a_rank_waits(tmp_path: Path) -> None:
    """irecv, a batch, recv, and a pipeline whose first stage waits until the second takes two more of its four rows."""
    printed = run_job([*PROBE, str(SCRIPTS / "pipeline.py")], tmp_path / "pages")
    assert printed[1] == f"{[('recv', 1, 6)] * 3 + [('send', 1, 8)]}\n"


def test_when_the_last_message_came_is_known_though_nobody_waited_long_for_one(tmp_path: Path) -> None:
    printed = run_job([*PROBE, str(SCRIPTS / "small_messages.py")], tmp_path / "pages")
    assert printed == ["True True\n"] * 2
