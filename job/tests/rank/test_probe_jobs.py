"""The probe in real jobs of gloo ranks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from job.tests.support.probe_jobs import PROBE, SCRIPTS, run_job
from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import read_page

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("probe")  # one job at a time


def test_every_operation_is_seen(tmp_path: Path) -> None:
    assert run_job([*PROBE, str(SCRIPTS / "operations.py")], tmp_path / "pages") == ["done\n"] * 2
    for rank in range(2):
        page = read_page(page_path(tmp_path / "pages", rank, 0))
        assert page is not None
        assert page.exit_reason == "exit 0"
        assert page.has_socket
        assert not page.is_alive


def test_slots_of_groups_that_are_no_more_are_used_again(tmp_path: Path) -> None:
    printed = run_job([*PROBE, str(SCRIPTS / "many_groups.py")], tmp_path / "pages")
    assert printed == ["True\nTrue\nTrue\n"] * 2


def test_training_is_bit_identical(tmp_path: Path) -> None:
    """DDP and FSDP2, without the probe, with it, and with every operation timed; every step has another loss."""
    assert run_job([str(SCRIPTS / "training.py")], tmp_path / "pages") == ["6 6\n"] * 2


def test_training_goes_on_when_the_pages_are_removed(tmp_path: Path) -> None:
    """With the same losses; every step has another one."""
    assert run_job([str(SCRIPTS / "pages_removed.py")], tmp_path / "pages") == ["30\n"] * 2


def test_every_operation_of_torch_is_covered() -> None:
    import torch.distributed  # noqa: F401
    from torch._C import _dispatch_get_all_op_names, _get_schema

    from tensorwire_job.rank.operation_timing import _KINDS

    def is_operation(name: str) -> bool:
        return any(argument.name == "process_group" for argument in _get_schema(name, "").arguments)

    names = {name for name in _dispatch_get_all_op_names() if name.startswith("c10d::") and is_operation(name)}
    assert {name.removeprefix("c10d::") for name in names} == set(_KINDS)


def test_all_to_all_waits_for_the_last_rank_where_all_exchange_something(tmp_path: Path) -> None:
    """So that P holds there: T of the late rank is none, that of all others what it is late by."""
    printed = run_job([*PROBE, str(SCRIPTS / "all_to_all.py")], tmp_path / "pages", world_size=4)
    ways = [json.loads(line) for line in printed[0].splitlines()]
    assert [way["name"] for way in ways] == ["even", "even", "uneven", "halves", "ring"]
    for way in ways:
        if way["name"] in ("even", "uneven"):
            late, late_by = 2, 6 * 0.1
            waits = [seconds - way["seconds"][late] for rank, seconds in enumerate(way["seconds"]) if rank != late]
            assert min(waits) > 0.5 * late_by, way
            assert way["pairwise"] == [0] * 4
        else:
            assert way["pairwise"] == [6] * 4
