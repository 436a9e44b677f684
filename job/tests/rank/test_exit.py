"""The end of a rank. The interpreter ends threads that come back for its lock when it goes; where such a thread is in
C++ that may not throw, the process aborts ("terminate called without an active exception")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from job.tests.support.probe_jobs import PROBE, SCRIPTS, run_job
from tensorwire_job.page import call_file
from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import read_page

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("probe")  # one job at a time


def test_the_probes_thread_is_not_in_torch_at_the_end(tmp_path: Path) -> None:
    assert run_job([*PROBE, str(SCRIPTS / "exit_in_torch.py")], tmp_path / "pages", world_size=1) == [""]


@pytest.mark.parametrize("attempt", range(3))
def test_no_completion_is_told_after_the_end(tmp_path: Path, attempt: int) -> None:
    assert run_job([*PROBE, str(SCRIPTS / "exit_before_completion.py")], tmp_path / "pages") == ["", ""]


def test_process_groups_end_when_the_script_says_so(tmp_path: Path) -> None:
    """With their threads, which may hold tensors that take the interpreter's lock to be freed."""
    assert run_job([*PROBE, str(SCRIPTS / "groups_end.py")], tmp_path / "pages") == ["True\n"] * 2


@pytest.mark.parametrize("unreported", [0, 1])
def test_a_rank_that_has_come_to_its_end_shows_no_operation_as_open(tmp_path: Path, unreported: int) -> None:
    """The recorder's ring knows better than torch's numbers, and is read where they leave an operation open."""
    arguments = *PROBE, str(SCRIPTS / "exit_unreported.py"), str(unreported)
    assert run_job(arguments, tmp_path / "pages", world_size=1) == [""]
    path = page_path(tmp_path / "pages", 0, 0)
    page = read_page(path)
    assert page is not None
    (group,) = page.process_groups(0.0)
    assert (page.exit_kind, group.enqueued, group.completed) == ("end", 2, 2)
    assert (call_file.read(path) is not None) == bool(unreported)
