"""A rank that waits for a key of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from job.tests.support.probe_jobs import PROBE, SCRIPTS, run_job

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("probe")  # one job at a time


def test_a_rank_is_seen_to_wait_for_a_key(tmp_path: Path) -> None:
    """In each method that waits, and in no other; what the store does stays as it was."""
    printed = run_job([*PROBE, str(SCRIPTS / "store_waits.py")], tmp_path / "pages", world_size=1)
    assert printed[0].splitlines() == [
        "nothing",
        "wait: Store.wait",
        "nothing",
        "get: Store.wait b'1'",
        "nothing",
        "DistStoreError",
    ]
