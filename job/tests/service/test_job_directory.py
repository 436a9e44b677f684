"""Which directory is the job's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tensorwire_job.service import job_directory
from tensorwire_job.service.job_directory import find_directory

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_newest_job_is_meant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENSORWIRE_PROBE_DIR", str(tmp_path))
    for run_id in ("b", "a"):
        (tmp_path / run_id).mkdir()
        (tmp_path / run_id / "rank-0-0.page").write_bytes(bytes(4096))
        time.sleep(0.02)  # file systems count time in ticks
        assert find_directory(None) == tmp_path / run_id
    assert find_directory(tmp_path / "b") == tmp_path / "b"


def test_a_page_that_goes_meanwhile_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "rank-0-0.page").symlink_to(tmp_path / "gone")
    assert find_directory(tmp_path) == tmp_path


def test_pages_that_others_may_have_made_are_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another user may make /dev/shm/tensorwire-UID, and lie there about what to ask and what to write."""
    monkeypatch.delenv("TENSORWIRE_PROBE_DIR", raising=False)
    root = tmp_path / "root"
    monkeypatch.setattr(job_directory, "root_directory", lambda: root)
    (root / "job").mkdir(parents=True)
    (root / "job/rank-0-0.page").write_bytes(bytes(4096))
    root.chmod(0o700)
    assert find_directory(None) == root / "job"
    root.chmod(0o777)
    assert find_directory(None) is None
    assert find_directory(root / "job") == root / "job", "a person who names it knows whose it is"
