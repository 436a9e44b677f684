"""The request that a node's ranks time their operations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorwire_job.node import timing
from tensorwire_job.page import native
from tensorwire_job.page.control import ControlRequest, read_control


def test_request_is_what_the_ranks_read(tmp_path: Path) -> None:
    timing.enable(tmp_path, {"00000000000000c0": 120, "c1": 7}, 16)
    assert read_control(tmp_path) == ControlRequest(1, {0xC0: 120, 0xC1: 7}, 16)
    timing.disable(tmp_path)
    assert read_control(tmp_path) == ControlRequest(2, {}, 0)


def test_request_of_too_much_is_cut_to_what_a_page_holds(tmp_path: Path) -> None:
    timing.enable(tmp_path, {f"{number:x}": number for number in range(1, 1000)}, 10**9)
    request = read_control(tmp_path)
    assert request is not None
    assert (len(request.first), request.num_rounds) == (native.NUM_CONTROL_ENTRIES, 65535)


@pytest.mark.parametrize("identity", ["", "pg"])
def test_request_for_what_is_no_process_group(tmp_path: Path, identity: str) -> None:
    with pytest.raises(ValueError, match="base 16"):
        timing.enable(tmp_path, {identity: 1}, 16)
    assert read_control(tmp_path) is None
