"""How long to rest between pieces of work."""

from __future__ import annotations

import pytest

from tensorwire_job.service.time_share import TimeShare


def test_work_takes_its_share_of_the_time() -> None:
    share = TimeShare(0.05)
    share.rest_after(0.1)
    assert share.rest_after(0.1) == pytest.approx(2.0)


def test_one_long_piece_changes_nothing() -> None:
    share = TimeShare(0.05)
    rests = [share.rest_after(seconds) for seconds in (1.0, 0.01, 1.0, 0.01, 1.0, 1.0)]
    assert rests == pytest.approx([0.0, 0.2, 0.2, 0.2, 0.2, 20.0])
